//! The connection of this rank to one peer. The transports differ only here: a pair of channels to
//! another thread (`local.rs`), or a socket (`tcp/`). `mesh.rs` holds one link per peer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::frame::{Frame, FrameError};
use crate::local_channel::LocalChannel;
use crate::tcp::TcpLink;

/// One link, in both directions.
pub(crate) enum Link {
    Local {
        outgoing: Arc<LocalChannel>,
        incoming: Arc<LocalChannel>,
    },
    /// Shared with the heartbeat thread.
    Tcp(Arc<Mutex<TcpLink>>),
}

/// The reason why a peer sends nothing more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    /// It closed the group after its last collective.
    Goodbye,
    /// It stopped and sent the reason.
    Aborted(String),
    /// Its connection closed without a goodbye.
    Closed(String),
    /// Not a byte arrived for this long.
    Silent(std::time::Duration),
    /// It sent something that is not a valid frame of this group.
    Garbled(FrameError),
}

/// The result of asking for the next frame.
pub(crate) enum Received {
    Frame(Frame),
    Ended(LinkEnd),
    Nothing,
}

impl Link {
    /// Returns whether a frame can be queued now.
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Link::Local { outgoing, .. } => outgoing.has_room(),
            Link::Tcp(link) => locked(link).has_room(),
        }
    }

    /// Queues a frame and sends as much as the link accepts. Never blocks; check [`Link::has_room`]
    /// first.
    pub(crate) fn push(&self, frame: Frame) {
        match self {
            Link::Local { outgoing, .. } => outgoing.push(frame),
            Link::Tcp(link) => locked(link).push(&frame),
        }
    }

    /// Returns the next frame if it has arrived, and the end after all frames are taken.
    pub(crate) fn next(&self) -> Received {
        match self {
            Link::Local { incoming, .. } => incoming.next(),
            Link::Tcp(link) => locked(link).next(),
        }
    }

    /// Returns the end of the link, even if frames are still to be taken before it.
    pub(crate) fn ended(&self) -> Option<LinkEnd> {
        match self {
            Link::Local { incoming, .. } => incoming.ended(),
            Link::Tcp(link) => locked(link).ended(),
        }
    }

    /// Returns whether everything queued has left this process.
    pub(crate) fn is_flushed(&self) -> bool {
        match self {
            Link::Local { .. } => true,
            Link::Tcp(link) => locked(link).is_flushed(),
        }
    }
}

/// Ends the channels of the local transport. If this rank has left in an orderly way, the end is
/// already set and this changes nothing; otherwise the peer learns that this rank is gone. A socket
/// does that by itself.
impl Drop for Link {
    fn drop(&mut self) {
        if let Link::Local { outgoing, incoming } = self {
            outgoing.end(LinkEnd::Closed("it ended without a goodbye".to_owned()));
            incoming.close_receiver();
        }
    }
}

/// Locks a mutex even if another thread panicked while holding it: every critical section leaves
/// the state consistent.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
