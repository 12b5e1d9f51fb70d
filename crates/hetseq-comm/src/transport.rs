//! How frames move between a rank and its peers: all that `mesh.rs` knows about it.
//!
//! A transport moves frames, notices when a peer is gone, and puts the rank to sleep until
//! something has changed. It knows neither collectives nor their deadlines. `stream/` implements it
//! over sockets, `mpi/` over MPI.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buffers::Payload;
use crate::connection::Connection;
use crate::error::CommError;
use crate::frame::{Frame, FrameError};
use crate::heartbeat_timing::HeartbeatTiming;
use crate::signal::Waker;

/// The links of one rank to its peers. For a rank without a link, which includes this one, there is
/// never room, nothing arrives and nothing is left to send.
pub(crate) trait Transport: Send + Sync {
    /// Returns whether a frame can be queued for `peer` now. There is no room for a peer that takes
    /// nothing more; its end says why.
    fn has_room(&self, peer: usize) -> bool;

    /// Queues a frame and sends as much as the link accepts. Never blocks; check
    /// [`Transport::has_room`] first.
    fn push(&self, peer: usize, frame: &Frame);

    /// Returns the next frame if it has arrived, and the end after all frames are taken.
    fn next(&self, peer: usize) -> Received;

    /// Returns the end of the link, even if frames are still to be taken before it.
    fn ended(&self, peer: usize) -> Option<LinkEnd>;

    /// Returns whether everything queued for `peer` has left this process.
    fn is_flushed(&self, peer: usize) -> bool;

    /// Sends what the links accept of what is queued; returns whether anything was sent.
    fn flush(&self) -> bool;

    /// Returns whether queued frames leave between collectives, too. If not, a collective ends only
    /// when all have left.
    fn sends_between_collectives(&self) -> bool;

    /// Returns the size of a payload below which a frame costs more than its bytes; equal on all
    /// ranks.
    fn smallest_piece_bytes(&self) -> usize;

    /// Returns whether the ranks that are left can continue when others are lost.
    fn can_regroup(&self) -> bool;

    /// Sleeps until a link may have changed, a [`Waker`] was used, a peer has been silent for too
    /// long since `since`, or `limit` has passed; returns the time slept. The only place where the
    /// rank's thread sleeps in a collective.
    fn wait(&self, since: Instant, limit: Duration) -> Duration;

    /// Called when the rank enters a collective (`true`), so that its own thread drives the links,
    /// and when it leaves it. In between collectives the transport keeps the links alive by itself.
    fn attend(&self, in_collective: bool);

    /// Sends the end to all peers, waits at most `limit` until they have received it, and closes
    /// the links.
    fn part(&mut self, end: &LinkEnd, limit: Duration);

    /// Takes the next message about the membership of the next generation from `peer`.
    fn take_regroup(&self, peer: usize) -> Option<Arc<Payload>>;

    /// Returns whether such a message from `peer` waits to be taken.
    fn has_regroup(&self, peer: usize) -> bool;

    /// Ends the link to `peer` at once, so that the peer notices too; `end` says why, unless it has
    /// ended before.
    fn cut(&self, peer: usize, end: LinkEnd);

    /// Drops the queued frames of collectives that have not started to leave.
    fn cancel_queued(&self);

    /// Takes nothing more from `peer`; `end` says why, unless it has ended before. What is queued
    /// for it is still sent.
    fn give_up(&self, peer: usize, end: LinkEnd);

    /// Continues as `generation`, with the links to `ranks` only, in this order; closes the others.
    /// Unsent and untaken frames of collectives are dropped.
    fn install(&mut self, ranks: &[usize], generation: u64);

    /// Adds a link to a newcomer, as the last, in the current `generation`.
    fn add(&mut self, connection: Connection, timing: HeartbeatTiming, generation: u64) -> Result<(), CommError>;

    /// The timing of all ranks combined.
    fn timing(&self) -> HeartbeatTiming;

    /// Returns a handle that ends [`Transport::wait`], from any thread.
    fn waker(&self) -> Waker;
}

/// The reason why a peer sends nothing more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    /// It closed the group after its last collective.
    Goodbye,
    /// It stopped the run and sent the reason.
    Aborted(String),
    /// It failed and sent the reason; the others may continue without it.
    Failed(String),
    /// Its connection closed without a goodbye.
    Closed(String),
    /// Not a byte arrived for this long.
    Silent(Duration),
    /// It sent something that is not a valid frame of this group.
    Garbled(FrameError),
}

/// The result of asking for the next frame.
pub(crate) enum Received {
    Frame(Frame),
    Ended(LinkEnd),
    Nothing,
}
