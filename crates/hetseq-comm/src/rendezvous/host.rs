//! Rank 0's part: let every rank in, hand out the roster, give the start, and keep the door from then on.
//!
//! Who sits where is in `table.rs`; where the door is and who knows of it, in `fixed.rs` and `directory.rs`.

use std::net::TcpListener;

use super::admission::Limits;
use super::doorkeeper::{Doorkeeper, Left};
use super::greeting::{self, Party};
use super::refusal::Refusal;
use super::table::{Door, Table};
use super::talk::{Message, unexpected};
use super::{Meeting, Met};
use crate::error::CommError;
use crate::secret::{Credentials, random};

/// Where the ranks come to.
pub(super) struct Venue {
    pub(super) listener: TcpListener,
    /// Of the meeting; 0 at a fixed address.
    pub(super) generation: u64,
    pub(super) credentials: Credentials,
    /// What lies around for others to find until the group ends.
    pub(super) left: Left,
}

/// Why rank 0 stops to wait for the others.
pub(super) enum Interruption {
    /// Another one leads the meeting.
    StandDown,
    Fail(CommError),
}

/// Gathers the ranks; `None` if it stood down, which `interruption` may ask for until all have come.
pub(super) fn host(
    meeting: &Meeting<'_>,
    venue: Venue,
    interruption: &mut dyn FnMut() -> Option<Interruption>,
) -> Result<Option<Met>, CommError> {
    let Venue { listener, generation, credentials, left } = venue;
    let encrypt = meeting.options.encrypt;
    let greet = move |talk| {
        let party = Party { rank: Some(0), generation, credentials: &credentials, encrypt };
        let (mut talk, rank) = greeting::answer(talk, &party)?;
        match talk.receive()? {
            Message::Hello(hello) if hello.rank == rank => Ok((talk, hello)),
            other => Err(unexpected("hello of the rank that greeted", &other)),
        }
    };
    let door = Door::open(listener, Limits::gathering(meeting.world), greet)?;
    let mut table = Table::new(meeting);
    match table.seat_all(&door, interruption) {
        Ok(None) => {}
        Ok(Some(interruption)) => {
            table.tell_all(&Refusal::Moved);
            return match interruption {
                Interruption::StandDown => Ok(None),
                Interruption::Fail(error) => Err(error),
            };
        }
        Err(refusal) => {
            table.call_off(&refusal, &door);
            return Err(refusal.into_error("rank 0"));
        }
    }
    // The roster is final: whoever else comes is told so.
    let keeper = Doorkeeper::start(door, table.take_strangers(), meeting.world, left)?;
    let drawn = random().map_err(|source| CommError::System { what: "give random numbers", reason: source })?;
    // 0 stands for "no group yet".
    let generation = u64::from_le_bytes(drawn).max(1);
    match table.start(generation) {
        Ok(()) => Ok(Some(table.into_met(generation, keeper))),
        Err(refusal) => {
            table.tell_all(&refusal);
            Err(refusal.into_error("rank 0"))
        }
    }
}
