//! What joins this rank to one peer. The engines differ only here: the other rank itself at the far end of two lanes
//! (`local.rs`), or a socket (`tcp.rs`). `mesh.rs` holds one link per peer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::frame::{Frame, FrameError};
use crate::lane::Lane;
use crate::tcp::Wire;

pub(crate) enum Link {
    Lanes {
        outgoing: Arc<Lane>,
        incoming: Arc<Lane>,
    },
    /// Shared with the thread that sends heartbeats.
    Wire(Arc<Mutex<Wire>>),
}

/// Why nothing more comes from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// An orderly farewell.
    Goodbye,
    /// The sender stopped and said why.
    Aborted(String),
    /// It went away without a word.
    Closed(String),
    /// Not a byte came for this long.
    Silent(std::time::Duration),
    /// It sent something that is not a frame for us.
    Garbled(FrameError),
}

/// What the consumer finds.
pub(crate) enum Next {
    Frame(Frame),
    Ended(End),
    Nothing,
}

impl Link {
    /// Whether a frame can be queued now.
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Link::Lanes { outgoing, .. } => outgoing.has_room(),
            Link::Wire(wire) => locked(wire).has_room(),
        }
    }

    /// Queues a frame, and sends what the line takes. Never blocks; ask for room first.
    pub(crate) fn push(&self, frame: Frame) {
        match self {
            Link::Lanes { outgoing, .. } => outgoing.push(frame),
            Link::Wire(wire) => locked(wire).push(&frame),
        }
    }

    /// The next frame if it has come; the end once all frames are taken.
    pub(crate) fn next(&self) -> Next {
        match self {
            Link::Lanes { incoming, .. } => incoming.next(),
            Link::Wire(wire) => locked(wire).next(),
        }
    }

    /// The end, though frames may still come before it.
    pub(crate) fn ended(&self) -> Option<End> {
        match self {
            Link::Lanes { incoming, .. } => incoming.ended(),
            Link::Wire(wire) => locked(wire).ended(),
        }
    }

    /// Whether all that was queued is out of this process's hands.
    pub(crate) fn is_flushed(&self) -> bool {
        match self {
            Link::Lanes { .. } => true,
            Link::Wire(wire) => locked(wire).is_flushed(),
        }
    }
}

/// Frees everybody at the far ends. After an orderly farewell the end is set already and this changes nothing; otherwise
/// the peer learns that this rank went away. A socket tells that by itself.
impl Drop for Link {
    fn drop(&mut self) {
        if let Link::Lanes { outgoing, incoming } = self {
            outgoing.end(End::Closed("it ended without a goodbye".to_owned()));
            incoming.stop_listening();
        }
    }
}

/// A panic elsewhere must not spread: every critical section leaves the state consistent.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
