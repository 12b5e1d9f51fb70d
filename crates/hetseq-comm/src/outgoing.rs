//! Messages of bytes that a rank still has to send in the running collective, cut into frames as the lanes have room.
//!
//! Borrowed from the caller and copied one frame at a time, so a large message is never held twice. Part of the
//! exchanges of bytes in `reduce.rs`; vectors of floats have their own in `reduce/`.

use crate::buffers::Payload;
use crate::error::CommError;
use crate::frame::{CHUNK_BYTES, Kind};
use crate::mesh::Mesh;

/// One running collective; its frames carry both.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    pub(crate) sequence: u64,
}

/// The messages of one step that are not fully queued yet.
#[derive(Default)]
pub(crate) struct Outgoing<'a> {
    messages: Vec<(usize, &'a [u8])>,
}

impl<'a> Outgoing<'a> {
    /// An empty message is one empty frame.
    pub(crate) fn add(&mut self, peer: usize, message: &'a [u8]) {
        self.messages.push((peer, message));
    }

    /// Somebody whose message is not fully queued.
    pub(crate) fn next_peer(&self) -> Option<usize> {
        self.messages.first().map(|(peer, _)| *peer)
    }

    /// Fills every lane that has room; tells whether anything moved.
    pub(crate) fn pump(&mut self, mesh: &Mesh, step: Step) -> Result<bool, CommError> {
        let mut moved = false;
        for (peer, rest) in &mut self.messages {
            while mesh.has_room(step, *peer)? {
                let (now, later) = rest.split_at(rest.len().min(CHUNK_BYTES));
                mesh.send(step, *peer, later.is_empty(), Payload::new(now.to_vec()));
                *rest = later;
                moved = true;
                if later.is_empty() {
                    // Marked as done by having no peer of that number.
                    *peer = usize::MAX;
                    break;
                }
            }
        }
        self.messages.retain(|(peer, _)| *peer != usize::MAX);
        Ok(moved)
    }
}
