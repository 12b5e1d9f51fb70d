//! Messages of bytes that a rank still has to send in the running collective, split into frames as
//! links have room.
//!
//! Borrowed from the caller and copied one frame at a time, so a large message is never held twice.
//! Used by the collectives over bytes in `reduce/mod.rs`; vectors of floats have their own code in
//! `reduce/`.

use crate::buffers::Payload;
use crate::error::CommError;
use crate::frame::{CHUNK_BYTES, FrameKind};
use crate::mesh::Mesh;

/// One running collective; its frames carry both fields.
#[derive(Clone, Copy)]
pub(crate) struct CollectiveStep {
    pub(crate) kind: FrameKind,
    pub(crate) sequence: u64,
}

/// The messages of one step that are not fully queued yet.
#[derive(Default)]
pub(crate) struct Outgoing<'a> {
    messages: Vec<(usize, &'a [u8])>,
}

impl<'a> Outgoing<'a> {
    /// Adds a message for `peer`. An empty message is one empty frame.
    pub(crate) fn add(&mut self, peer: usize, message: &'a [u8]) {
        self.messages.push((peer, message));
    }

    /// Returns a peer whose message is not fully queued.
    pub(crate) fn next_peer(&self) -> Option<usize> {
        self.messages.first().map(|(peer, _)| *peer)
    }

    /// Fills every link that has room; returns whether anything moved.
    pub(crate) fn pump(&mut self, mesh: &Mesh, step: CollectiveStep) -> Result<bool, CommError> {
        let mut moved = false;
        for (peer, rest) in &mut self.messages {
            while mesh.has_room(step, *peer)? {
                let (now, later) = rest.split_at(rest.len().min(CHUNK_BYTES));
                mesh.send(step, *peer, later.is_empty(), Payload::new(now.to_vec()));
                *rest = later;
                moved = true;
                if later.is_empty() {
                    // Done: no peer has this number.
                    *peer = usize::MAX;
                    break;
                }
            }
        }
        self.messages.retain(|(peer, _)| *peer != usize::MAX);
        Ok(moved)
    }
}
