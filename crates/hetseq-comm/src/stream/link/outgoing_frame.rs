//! A frame in the send queue of a link, encrypted when its turn comes. Used by `link/mod.rs`.

use std::io::IoSlice;
use std::sync::Arc;

use crate::buffers::Payload;
use crate::encryption::Encryption;

/// A queued frame.
pub(super) struct OutgoingFrame {
    head: Vec<u8>,
    body: Option<Arc<Payload>>,
    /// Bytes of head and body that are written.
    written: usize,
    is_encrypted: bool,
    /// It is sent even if the generation changes before its turn.
    pub(super) is_kept: bool,
}

impl OutgoingFrame {
    pub(super) fn new(head: Vec<u8>, body: Option<Arc<Payload>>, is_kept: bool) -> OutgoingFrame {
        OutgoingFrame { head, body, written: 0, is_encrypted: false, is_kept }
    }

    /// Returns the bytes to write next: what is left of head and body, for one packet.
    pub(super) fn rest(&self) -> [IoSlice<'_>; 2] {
        let head = self.written.min(self.head.len());
        let body = self.body.as_ref().map_or(&[][..], |body| &body[self.written - head..]);
        [IoSlice::new(&self.head[head..]), IoSlice::new(body)]
    }

    /// Counts bytes of [`OutgoingFrame::rest`] as written.
    pub(super) fn advance(&mut self, count: usize) {
        self.written += count;
    }

    pub(super) fn unwritten_bytes(&self) -> usize {
        self.head.len() + self.body.as_ref().map_or(0, |body| body.len()) - self.written
    }

    /// Encrypts it, if the connection is encrypted and this is not done yet. Only when its turn has
    /// come: records are numbered, so one that was encrypted and then dropped would look to the
    /// peer like a record removed in transit.
    pub(super) fn encrypt(&mut self, encryption: Option<&mut Encryption>) -> std::io::Result<()> {
        let Some(encryption) = encryption.filter(|_| !self.is_encrypted) else { return Ok(()) };
        let mut records = Vec::new();
        encryption.encryptor.write(&mut records, &self.head)?;
        encryption.encryptor.write(&mut records, self.body.as_deref().map_or(&[], |body| &body[..]))?;
        *self = OutgoingFrame { head: records, body: None, written: 0, is_encrypted: true, is_kept: self.is_kept };
        Ok(())
    }

    /// Returns whether it has started to leave, so that it must leave whole.
    pub(super) fn has_started(&self) -> bool {
        self.is_encrypted || self.written > 0
    }
}
