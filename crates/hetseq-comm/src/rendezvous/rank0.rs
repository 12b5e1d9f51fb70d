//! The join of rank 0: wait for all ranks, send the member list and the start. From then on its
//! listener is its door (`door.rs`).
//!
//! `membership.rs` keeps track of the ranks. `fixed.rs` and `directory.rs` open the listener,
//! announce it and call this.

use std::net::TcpListener;

use super::auth::{self, LocalParty};
use super::door::{Door, Host, TempFiles, receive_request};
use super::limits::AcceptLimits;
use super::membership::{Membership, RankAcceptor};
use super::refusal::Refusal;
use super::{JoinContext, Joined};
use crate::error::CommError;
use crate::secret::{Credentials, random};
use crate::socket;

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
    let port = listener.local_addr().map_err(|reason| CommError::System { what: "read a port", reason })?.port();
    let addresses = socket::own_addresses(socket::chosen_ip(context.options)?, port)?;
    let known = credentials.clone();
    let handler = move |handshake| {
        let party = LocalParty { rank: Some(0), generation, credentials: &credentials, encrypt };
        let (mut handshake, rank) = auth::answer_newcomers(handshake, &party)?;
        let request = receive_request(&mut handshake, rank)?;
        Ok((handshake, request))
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
    // The member list is final: later ranks are newcomers.
    let host = Host { name: context.name.clone(), identity: context.identity.clone() };
    let door = Door::open(acceptor, membership.take_reject_log(), context.world, host, files)?;
    let random = random().map_err(|source| CommError::System { what: "provide random numbers", reason: source })?;
    // 0 means "no group yet". Later generations count up from here.
    let generation = (u64::from_le_bytes(random) >> 1).max(1);
    match membership.start(generation) {
        Ok(()) => Ok(Some(membership.into_joined(generation, (door, addresses), known))),
        Err(refusal) => {
            membership.refuse_all(&refusal);
            Err(refusal.into_error("rank 0"))
        }
    }
}
