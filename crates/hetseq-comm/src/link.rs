//! What joins this rank to one peer: a lane out, a lane in, and the wire that serves them, if any.
//!
//! The engines differ only in who sits at the far end of the lanes: the other rank itself (`local.rs`)
//! or two threads with a socket (`tcp.rs`). `mesh.rs` holds one link per peer and cannot tell which.

use std::sync::Arc;

use crate::lane::{End, Lane};
use crate::tcp::Wire;

pub(crate) struct Link {
    /// Frames to the peer: queue one when it has room.
    pub(crate) outgoing: Arc<Lane>,
    /// Frames from the peer, and in the end why there are no more.
    pub(crate) incoming: Arc<Lane>,
    /// Socket and threads; `None` in the `local` engine.
    pub(crate) wire: Option<Wire>,
}

/// Frees everybody at the far ends. After an orderly farewell the end is set already and this changes
/// nothing; otherwise the peer learns that this rank went away.
impl Drop for Link {
    fn drop(&mut self) {
        self.outgoing.end(End::Closed("it ended without a goodbye".to_owned()));
        self.incoming.stop_listening();
    }
}
