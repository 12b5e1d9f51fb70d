//! What a rank still has to send in the running collective, cut into frames as the lanes have room.
//!
//! Borrowed from the caller's slices and copied one frame at a time, so a large vector is never held twice. Filled by
//! `reduce.rs`, emptied by `mesh.rs` while it waits.

use crate::buffers::Buffers;
use crate::frame::{CHUNK_BYTES, Frame, Kind};
use crate::link::Link;

/// One running collective; its frames carry both.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    pub(crate) sequence: u64,
}

/// What a message consists of.
#[derive(Clone, Copy)]
pub(crate) enum Content<'a> {
    Floats(&'a [f32]),
    Bytes(&'a [u8]),
}

/// The messages of one step that are not fully queued yet.
#[derive(Default)]
pub(crate) struct Outgoing<'a> {
    messages: Vec<(usize, Content<'a>)>,
}

impl<'a> Outgoing<'a> {
    /// An empty message is one empty frame.
    pub(crate) fn add(&mut self, peer: usize, content: Content<'a>) {
        self.messages.push((peer, content));
    }

    /// Somebody whose message is not fully queued.
    pub(crate) fn next_peer(&self) -> Option<usize> {
        self.messages.first().map(|(peer, _)| *peer)
    }

    /// Fills every lane that has room; tells whether anything moved.
    pub(crate) fn pump(&mut self, step: Step, links: &[Option<Link>]) -> bool {
        let mut moved = false;
        self.messages.retain_mut(|(peer, content)| {
            let Some(Some(link)) = links.get(*peer) else { return false };
            while link.outgoing.has_room() {
                let (payload, last) = content.take_chunk(&link.outgoing.buffers);
                let Step { kind, sequence } = step;
                link.outgoing.push(Frame { kind, last, sequence, payload });
                moved = true;
                if last {
                    return false;
                }
            }
            true
        });
        moved
    }
}

impl Content<'_> {
    /// Removes one frame's worth from the front; `true` with the last one.
    fn take_chunk(&mut self, buffers: &Buffers) -> (Vec<u8>, bool) {
        match self {
            Content::Bytes(rest) => {
                let (now, later) = rest.split_at(rest.len().min(CHUNK_BYTES));
                *rest = later;
                let mut bytes = buffers.take(now.len());
                bytes.clear();
                bytes.extend_from_slice(now);
                (bytes, later.is_empty())
            }
            Content::Floats(rest) => {
                let (now, later) = rest.split_at(rest.len().min(CHUNK_BYTES / 4));
                *rest = later;
                let mut bytes = buffers.take(now.len() * 4);
                // Not cleared first: a buffer of the right size needs no filling with zeros.
                bytes.resize(now.len() * 4, 0);
                for (to, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(now) {
                    *to = value.to_le_bytes();
                }
                (bytes, later.is_empty())
            }
        }
    }
}
