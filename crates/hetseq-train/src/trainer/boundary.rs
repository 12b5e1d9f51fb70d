//! The boundary after an update: validation and checkpoint, which all ranks do together. If a rank
//! is lost before the end of it, the others restore the state before it and repeat all of it.

use serde::{Deserialize, Serialize};

use crate::data::update_sampler::PlannedUpdate;
use crate::trainer::header::MergedHeader;
use crate::trainer::state::State;

use super::Trainer;
use super::checkpointing::Checkpointing;
use super::learner::Learner;

/// The work after an update that is applied.
pub(super) struct Boundary {
    decisions: BoundaryDecisions,
    /// Before anything was done.
    state: State,
    bests: usize,
}

/// What the ranks have agreed on before it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct BoundaryDecisions {
    /// The epoch of the update.
    pub(super) epoch: u64,
    /// The run ends before the next update, though it was planned.
    pub(super) ends: bool,
    /// Ranks were asked to stop: before anything else, they agree on what follows (`leave.rs`).
    pub(super) is_asked_to_stop: bool,
}

impl BoundaryDecisions {
    /// The decisions after `update`, from the header of the next one.
    pub(super) fn of(update: &PlannedUpdate, next: &MergedHeader) -> Self {
        BoundaryDecisions { epoch: update.epoch, ends: next.ends, is_asked_to_stop: next.stop.is_some() }
    }
}

impl Boundary {
    pub(super) fn new(decisions: BoundaryDecisions, learner: &Learner, checkpointing: &Checkpointing) -> Self {
        Boundary { decisions, state: learner.state.clone(), bests: checkpointing.bests() }
    }

    pub(super) fn decisions(&self) -> BoundaryDecisions {
        self.decisions
    }
}

impl Trainer {
    /// Starts the boundary after the update just applied.
    pub(super) fn enter_boundary(&mut self, decisions: BoundaryDecisions) {
        self.boundary = Some(Boundary::new(decisions, &self.learner, &self.checkpointing));
    }

    /// Starts the boundary again whose validation was dropped because the run was stopped, on the
    /// resume from its checkpoint.
    pub(super) fn resume_boundary(&mut self) {
        if let Some(epoch) = self.learner.state.unfinished_validation {
            self.enter_boundary(BoundaryDecisions { epoch, ends: false, is_asked_to_stop: false });
        }
    }

    /// Ends it: what it has found is final.
    pub(super) fn leave_boundary(&mut self) {
        self.boundary = None;
        self.observer.release_held();
    }

    /// Forgets what an unfinished boundary has done.
    pub(super) fn restore_boundary(&mut self) {
        self.observer.drop_held();
        if let Some(boundary) = &self.boundary {
            self.learner.state = boundary.state.clone();
            self.checkpointing.restore_bests(boundary.bests);
        }
    }
}
