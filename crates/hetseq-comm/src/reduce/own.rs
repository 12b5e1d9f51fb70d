//! What a rank contributes to a sum that it enters before it has it: asked for until it is there.
//!
//! Used by `late.rs`, which sends it on.

use std::time::{Duration, Instant};

use crate::error::CommError;
use crate::mesh::{Exchange, Failure, Mesh};
use crate::outgoing::Step;

use super::AGREE_LIMIT_BYTES;

/// What one rank adds to a sum.
#[derive(Clone, Debug, Default)]
pub struct Contribution {
    /// Small, for everybody: the update header. 64 MiB is the limit.
    pub note: Vec<u8>,
    /// As many values as the shards cover.
    pub data: Vec<f32>,
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

/// This rank's contribution, from the one who computes it.
pub(super) struct Own<F> {
    mine: F,
    len: usize,
    pub(super) given: Option<Given>,
}

/// When it was given, and how long this rank had slept until then.
#[derive(Clone, Copy)]
pub(super) struct Given {
    pub(super) at: Instant,
    pub(super) asleep: Duration,
}

impl<F, E> Own<F>
where
    F: FnMut() -> Result<Option<Contribution>, E>,
{
    /// Of `len` values.
    pub(super) fn new(mine: F, len: usize) -> Own<F> {
        Own { mine, len, given: None }
    }

    /// Asks for it, unless it was given before.
    pub(super) fn ask(&mut self, mesh: &Mesh) -> Result<Option<Contribution>, Fault<E>> {
        if self.given.is_some() {
            return Ok(None);
        }
        let Some(contribution) = (self.mine)().map_err(Fault::Own)? else { return Ok(None) };
        let misuse = |what| CommError::Misuse { operation: "all_reduce_late", what };
        if contribution.data.len() != self.len {
            return Err(misuse(format!("{} values for a sum of {}", contribution.data.len(), self.len)).into());
        }
        if contribution.note.len() > AGREE_LIMIT_BYTES {
            let bytes = contribution.note.len();
            return Err(misuse(format!("a note of {bytes} bytes, the limit is {AGREE_LIMIT_BYTES}")).into());
        }
        self.given = Some(Given { at: Instant::now(), asleep: mesh.asleep });
        Ok(Some(contribution))
    }
}

/// Nothing but the wait for the own contribution, while others may fail.
pub(super) struct Awaiting<F> {
    pub(super) rank: usize,
    pub(super) own: Own<F>,
    pub(super) contribution: Option<Contribution>,
}

impl<F, E> Exchange for Awaiting<F>
where
    F: FnMut() -> Result<Option<Contribution>, E>,
{
    type Error = Fault<E>;

    fn advance(&mut self, mesh: &Mesh, _: Step) -> Result<bool, Fault<E>> {
        self.contribution = self.own.ask(mesh)?;
        Ok(false)
    }

    fn awaited(&self) -> Option<usize> {
        self.own.given.is_none().then_some(self.rank)
    }

    fn is_computing(&self) -> bool {
        true
    }

    fn leaves_unsent(&self) -> bool {
        true
    }
}
