//! The join of rank 0: wait for all ranks, send the member list and the start, and refuse late
//! ranks from then on.
//!
//! `membership.rs` keeps track of the ranks. `fixed.rs` and `directory.rs` open the listener,
//! announce it and call this.

use std::net::TcpListener;

use super::auth::{self, LocalParty};
use super::handshake::{Message, unexpected};
use super::late_join::{LateJoin, TempFiles};
use super::limits::AcceptLimits;
use super::membership::{Membership, RankAcceptor};
use super::refusal::Refusal;
use super::{JoinContext, Joined};
use crate::error::CommError;
use crate::secret::{Credentials, random};

/// The open rendezvous.
pub(super) struct Listening {
    pub(super) listener: TcpListener,
    /// The generation in auth requests before the group exists: the notice's id, or 0 at a fixed
    /// address.
    pub(super) generation: u64,
    pub(super) credentials: Credentials,
    /// Files removed when the group ends.
    pub(super) files: TempFiles,
}

/// Why rank 0 stops waiting for the others.
pub(super) enum Interruption {
    /// Another process leads.
    OtherLeader,
    Fail(CommError),
}

/// Waits for all ranks and starts the group. Returns `None` if `interruption` reports another
/// leader, which it may do until all ranks have joined.
pub(super) fn join(
    context: &JoinContext<'_>,
    listening: Listening,
    interruption: &mut dyn FnMut() -> Option<Interruption>,
) -> Result<Option<Joined>, CommError> {
    let Listening { listener, generation, credentials, files } = listening;
    let encrypt = context.options.encrypt;
    let handler = move |handshake| {
        let party = LocalParty { rank: Some(0), generation, credentials: &credentials, encrypt };
        let (mut handshake, rank) = auth::answer(handshake, &party)?;
        match handshake.receive()? {
            Message::Hello(hello) if hello.rank == rank => Ok((handshake, hello)),
            other => Err(unexpected("hello of the authenticated rank", &other)),
        }
    };
    let acceptor = RankAcceptor::open(listener, AcceptLimits::while_joining(context.world), handler)?;
    let mut membership = Membership::new(context);
    match membership.wait_for_all(&acceptor, interruption) {
        Ok(None) => {}
        Ok(Some(interruption)) => {
            membership.refuse_all(&Refusal::Moved);
            return match interruption {
                Interruption::OtherLeader => Ok(None),
                Interruption::Fail(error) => Err(error),
            };
        }
        Err(refusal) => {
            membership.cancel(&refusal);
            return Err(refusal.into_error("rank 0"));
        }
    }
    // The member list is final: later ranks are refused.
    let late_join = LateJoin::start(acceptor, membership.take_reject_log(), context.world, files)?;
    let random = random().map_err(|source| CommError::System { what: "provide random numbers", reason: source })?;
    // 0 means "no group yet". Later generations count up from here.
    let generation = (u64::from_le_bytes(random) >> 1).max(1);
    match membership.start(generation) {
        Ok(()) => Ok(Some(membership.into_joined(generation, late_join))),
        Err(refusal) => {
            membership.refuse_all(&refusal);
            Err(refusal.into_error("rank 0"))
        }
    }
}
