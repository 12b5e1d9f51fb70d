//! The contribution of this rank to a sum that it enters before the contribution is ready.
//!
//! Used by `direct.rs`, which sends it, and by `all_reduce.rs`.

use std::time::{Duration, Instant};

use crate::error::CommError;
use crate::mesh::{Exchange, Failure, Mesh};
use crate::outgoing::CollectiveStep;

use super::ALL_GATHER_LIMIT_BYTES;

/// One rank's contribution to a sum: values, and a note for all ranks, such as the update header.
/// There must be as many values as the shards cover; a note has at most 64 MiB.
#[derive(Clone, Debug)]
pub enum Contribution {
    Both {
        note: Vec<u8>,
        data: Vec<f32>,
    },
    /// Values that are ready before the note. They are sent at once, and the closure is called
    /// until it returns the note.
    Data(Vec<f32>),
    /// The note, after the values.
    Note(Vec<u8>),
}

/// The error of this rank's closure, or of the group.
pub(super) enum Fault<E> {
    Own(E),
    Group(CommError),
}

impl<E> From<CommError> for Fault<E> {
    fn from(error: CommError) -> Fault<E> {
        Fault::Group(error)
    }
}

impl<E> Failure for Fault<E> {
    fn reason(&self) -> String {
        match self {
            Fault::Own(_) => "it failed to compute its part of the sum; see its log".to_owned(),
            Fault::Group(error) => error.to_string(),
        }
    }

    fn is_lost_rank(&self) -> bool {
        matches!(self, Fault::Group(error) if error.is_lost_rank())
    }
}

/// This rank's contribution, and the closure that computes it.
pub(super) struct OwnContribution<F> {
    compute: F,
    len: usize,
    /// Set when the values are ready.
    pub(super) ready: Option<ReadyContribution>,
    has_note: bool,
}

/// When the values became ready, and how long this rank had slept until then.
#[derive(Clone, Copy)]
pub(super) struct ReadyContribution {
    pub(super) at: Instant,
    pub(super) time_asleep: Duration,
}

/// What the last call of the closure returned.
#[derive(Default)]
pub(super) struct NewParts {
    pub(super) data: Option<Vec<f32>>,
    pub(super) note: Option<Vec<u8>>,
}

impl<F> OwnContribution<F> {
    /// A contribution of `len` values.
    pub(super) fn new(compute: F, len: usize) -> OwnContribution<F> {
        OwnContribution { compute, len, ready: None, has_note: false }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.ready.is_some() && self.has_note
    }
}

impl<F, E> OwnContribution<F>
where
    F: FnMut() -> Result<Option<Contribution>, E>,
{
    /// Calls the closure for what is missing.
    pub(super) fn poll(&mut self, mesh: &Mesh) -> Result<NewParts, Fault<E>> {
        if self.is_complete() {
            return Ok(NewParts::default());
        }
        let (data, note) = match (self.compute)().map_err(Fault::Own)? {
            None => return Ok(NewParts::default()),
            Some(Contribution::Both { note, data }) => (Some(data), Some(note)),
            Some(Contribution::Data(data)) => (Some(data), None),
            Some(Contribution::Note(note)) => (None, Some(note)),
        };
        let misuse = |what| CommError::Misuse { operation: "all_reduce", what };
        if data.is_some() == self.ready.is_some() {
            return Err(misuse("the values must be returned once, before the note".to_owned()).into());
        }
        if let Some(data) = data.as_ref().filter(|data| data.len() != self.len) {
            return Err(misuse(format!("{} values for a sum of {} values", data.len(), self.len)).into());
        }
        if let Some(note) = note.as_ref().filter(|note| note.len() > ALL_GATHER_LIMIT_BYTES) {
            return Err(misuse(format!("a note of {} bytes, the limit is {ALL_GATHER_LIMIT_BYTES}", note.len())).into());
        }
        if data.is_some() {
            self.ready = Some(ReadyContribution { at: Instant::now(), time_asleep: mesh.time_asleep });
        }
        self.has_note = note.is_some();
        Ok(NewParts { data, note })
    }
}

/// Waits for this rank's contribution, while other ranks may fail.
pub(super) struct Awaiting<F> {
    pub(super) rank: usize,
    pub(super) own: OwnContribution<F>,
    pub(super) data: Vec<f32>,
    pub(super) note: Vec<u8>,
}

impl<F, E> Exchange for Awaiting<F>
where
    F: FnMut() -> Result<Option<Contribution>, E>,
{
    type Error = Fault<E>;

    fn advance(&mut self, mesh: &Mesh, _: CollectiveStep) -> Result<bool, Fault<E>> {
        let NewParts { data, note } = self.own.poll(mesh)?;
        self.data = data.unwrap_or_else(|| std::mem::take(&mut self.data));
        self.note = note.unwrap_or_else(|| std::mem::take(&mut self.note));
        Ok(false)
    }

    fn awaited(&self) -> Option<usize> {
        (!self.own.is_complete()).then_some(self.rank)
    }

    fn is_computing(&self) -> bool {
        true
    }

    fn leaves_unsent(&self) -> bool {
        true
    }
}
