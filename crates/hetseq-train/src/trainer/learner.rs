//! The model being trained: parameters, optimizer and position of the run. Applies summed gradients
//! to the parameters; knows neither devices nor peers. Every rank holds the same, bit for bit.

use std::sync::Arc;

use hetseq_data::Cursor;
use hetseq_optim::{Layout, Optimizer, clip_factor};

use crate::checkpoint::finite::{not_finite, state_not_finite};
use crate::config::Optim;
use crate::data::update_sampler::PlannedUpdate;
use crate::trainer::state::State;

pub(crate) struct Learner {
    pub(super) state: State,
    pub(super) parameters: Arc<Vec<f32>>,
    optimizer: Optimizer,
    layout: Arc<Layout>,
    optim: Optim,
    /// Checksum of the parameters, if one was taken after the last update. The next header carries
    /// it.
    pub(super) new_checksum: Option<u64>,
}

/// An update wrote a value that is not finite: this one.
pub(super) struct WroteNotFinite(pub(super) String);

impl Learner {
    pub(super) fn new(
        state: State,
        parameters: Vec<f32>,
        optimizer: Optimizer,
        layout: &Arc<Layout>,
        optim: &Optim,
    ) -> Self {
        let (parameters, layout) = (Arc::new(parameters), layout.clone());
        Learner { state, parameters, optimizer, layout, optim: optim.clone(), new_checksum: None }
    }

    /// Updates done in the whole run.
    pub(super) fn updates(&self) -> u64 {
        self.state.cursor.updates
    }

    /// The last update of the run, as estimated at its start.
    pub(super) fn total_updates(&self) -> u64 {
        self.state.total_updates.unwrap_or_default()
    }

    /// The learning rate of the update at `cursor`, which is the next one or a later one.
    pub(super) fn lr_at(&self, cursor: &Cursor) -> f64 {
        let ahead = cursor.updates.saturating_sub(self.updates());
        let total = self.total_updates().saturating_sub(self.state.schedule_start);
        let own = self.optimizer.relative_rate(self.optimizer.steps() + 1 + ahead);
        own.unwrap_or_else(|| self.optim.scheduled_lr(total, self.state.position(cursor)))
    }

    /// The position of the run when `update` is done.
    pub(super) fn cursor_after(&self, update: &PlannedUpdate) -> Cursor {
        let mut next = self.state.cursor.clone();
        next.advance(update.samples.len() as u64, update.updates_in_epoch);
        next
    }

    /// Clips the gradient by its global `norm` and steps the optimizer. All ranks detect a value
    /// that is not finite after the same update, since their parameters and moments are equal.
    pub(super) fn step(&mut self, gradient: &[f32], norm: f64, lr: f64) -> Result<(), WroteNotFinite> {
        let scale = clip_factor(norm, self.optim.clip_norm);
        // The devices have released them, so this does not copy.
        let parameters = Arc::make_mut(&mut self.parameters);
        self.optimizer.step(parameters, gradient, scale, lr as f32);
        if self.optimizer.is_finite() {
            return Ok(());
        }
        let slots = self.optimizer.state();
        let slots = slots.iter().map(|(name, values)| (name.as_str(), *values));
        let what = not_finite(&self.layout, &self.parameters).or_else(|| state_not_finite(&self.layout, slots));
        Err(WroteNotFinite(what.unwrap_or_default()))
    }

    /// The optimizer's values per parameter, such as moments.
    pub(super) fn slots(&self) -> Vec<(String, &[f32])> {
        self.optimizer.state()
    }

    /// Copies the optimizer's scalars into the state, which is then complete.
    pub(super) fn complete_state(&mut self) {
        self.state.scalars = self.optimizer.scalars();
    }

    /// Hash of the bytes of all parameters. Ranks compare it to find replicas that differ in any
    /// bit.
    pub(super) fn checksum(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        let mut bytes = Vec::with_capacity(1 << 16);
        for chunk in self.parameters.chunks(1 << 14) {
            bytes.clear();
            bytes.extend(chunk.iter().flat_map(|value| value.to_le_bytes()));
            hasher.update(&bytes);
        }
        let hash = hasher.finalize();
        hash.as_bytes()[..8].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
    }
}
