//! What a rank contributes to a sum that it enters before it has it: asked for until it is there.
//!
//! Used by `late.rs`, which sends it on.

use std::time::{Duration, Instant};

use crate::error::CommError;
use crate::mesh::{Exchange, Failure, Mesh};
use crate::outgoing::Step;

use super::AGREE_LIMIT_BYTES;

/// What one rank adds to a sum: values, and a note for all ranks, such as the update header. There are as many values as the
/// shards cover; a note has at most 64 MiB.
#[derive(Clone, Debug)]
pub enum Contribution {
    Both {
        note: Vec<u8>,
        data: Vec<f32>,
    },
    /// The values are ready before the note. They are sent at once; the note is asked for until it comes.
    Data(Vec<f32>),
    /// The note, after the values.
    Note(Vec<u8>),
}

/// Either this rank's own fault or the others'.
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
            Fault::Own(_) => "it could not compute its part of the sum; see its log".to_owned(),
            Fault::Group(error) => error.to_string(),
        }
    }
}

/// This rank's contribution, from the closure that computes it.
pub(super) struct Own<F> {
    mine: F,
    len: usize,
    /// Set once the values are there.
    pub(super) given: Option<Given>,
    has_note: bool,
}

/// When the values were given, and how long this rank had slept until then.
#[derive(Clone, Copy)]
pub(super) struct Given {
    pub(super) at: Instant,
    pub(super) asleep: Duration,
}

/// What is new since the contribution was last asked for.
#[derive(Default)]
pub(super) struct New {
    pub(super) data: Option<Vec<f32>>,
    pub(super) note: Option<Vec<u8>>,
}

impl<F> Own<F> {
    /// Of `len` values.
    pub(super) fn new(mine: F, len: usize) -> Own<F> {
        Own { mine, len, given: None, has_note: false }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.given.is_some() && self.has_note
    }
}

impl<F, E> Own<F>
where
    F: FnMut() -> Result<Option<Contribution>, E>,
{
    /// Asks for what is missing.
    pub(super) fn ask(&mut self, mesh: &Mesh) -> Result<New, Fault<E>> {
        if self.is_complete() {
            return Ok(New::default());
        }
        let (data, note) = match (self.mine)().map_err(Fault::Own)? {
            None => return Ok(New::default()),
            Some(Contribution::Both { note, data }) => (Some(data), Some(note)),
            Some(Contribution::Data(data)) => (Some(data), None),
            Some(Contribution::Note(note)) => (None, Some(note)),
        };
        let misuse = |what| CommError::Misuse { operation: "all_reduce_late", what };
        if data.is_some() == self.given.is_some() {
            return Err(misuse("values must be given once, and before the note".to_owned()).into());
        }
        if let Some(data) = data.as_ref().filter(|data| data.len() != self.len) {
            return Err(misuse(format!("{} values for a sum of {}", data.len(), self.len)).into());
        }
        if let Some(note) = note.as_ref().filter(|note| note.len() > AGREE_LIMIT_BYTES) {
            return Err(misuse(format!("a note of {} bytes, the limit is {AGREE_LIMIT_BYTES}", note.len())).into());
        }
        if data.is_some() {
            self.given = Some(Given { at: Instant::now(), asleep: mesh.asleep });
        }
        self.has_note = note.is_some();
        Ok(New { data, note })
    }
}

/// Nothing but the wait for the own contribution, while others may fail.
pub(super) struct Awaiting<F> {
    pub(super) rank: usize,
    pub(super) own: Own<F>,
    pub(super) data: Vec<f32>,
    pub(super) note: Vec<u8>,
}

impl<F, E> Exchange for Awaiting<F>
where
    F: FnMut() -> Result<Option<Contribution>, E>,
{
    type Error = Fault<E>;

    fn advance(&mut self, mesh: &Mesh, _: Step) -> Result<bool, Fault<E>> {
        let New { data, note } = self.own.ask(mesh)?;
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
