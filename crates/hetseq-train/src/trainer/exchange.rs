//! The exchange of an update: this rank's gradients and its header for the next update go out
//! (`rank_contribution.rs`), the sums and headers of all ranks come back, and the headers are
//! applied. The only stage in which ranks wait for each other. The pure part is in `header.rs`.

use std::time::Instant;

use hetseq_comm::{Algorithm, Shards};
use hetseq_data::Cursor;

use crate::config::wire_format;
use crate::data::loader::LoadedUpdate;
use crate::data::update_sampler::PlannedUpdate;
use crate::error::TrainError;
use crate::run_dir::events::at_update;
use crate::task::{Split, skipped_samples};
use crate::trainer::header::{HeaderConflict, MergedHeader, RankTime, UpdateHeader, merge_headers};

use super::in_progress::InProgress;
use super::rank_contribution::{ContributionSources, RankContribution};
use super::{Trainer, messages};

/// The next update and its header, merged over all ranks.
pub(super) struct NextUpdate {
    /// None at the planned end of the run.
    pub(super) work: Option<(PlannedUpdate, LoadedUpdate)>,
    pub(super) merged: MergedHeader,
}

/// The sums of an update over all ranks.
pub(super) struct ReducedGradient {
    /// Of the trainable parameters.
    pub(super) flat: Vec<f32>,
    pub(super) losses: Vec<f64>,
    /// It overflowed on some device, so no rank uses it.
    pub(super) is_skipped: bool,
    /// The global norm, once it is known.
    pub(super) norm: f64,
}

impl Trainer {
    /// Returns the first update of this process. No gradients precede it, so its headers are
    /// exchanged by themselves.
    pub(super) fn first_update(&mut self) -> Result<NextUpdate, TrainError> {
        let cursor = self.learner.state.cursor.clone();
        self.session.group.at(at_update(cursor.updates + 1));
        let update = self.pipeline.sampler.at(&cursor);
        let mut header = self.header(&cursor, update.as_ref());
        let loaded = match &update {
            Some(_) => {
                let started = Instant::now();
                let loaded = self.pipeline.loader.take()?;
                header.rank.data_micros = started.elapsed().as_micros() as u64;
                header.set_work(&loaded, self.session.rank_label());
                Some(loaded)
            }
            None => None,
        };
        let merged = self.exchange_headers(&header, update.as_ref())?;
        Ok(NextUpdate { work: update.zip(loaded), merged })
    }

    /// Returns the update that was in progress when ranks were lost, with what this rank has to
    /// compute of it again. None if it starts from the beginning.
    pub(super) fn resumed_update(&mut self) -> Result<Option<NextUpdate>, TrainError> {
        let Some(in_progress) = &self.in_progress else { return Ok(None) };
        let merged = in_progress.header.clone();
        let update = self.pipeline.sampler.at(&self.learner.state.cursor);
        let loaded = self.pipeline.loader.take()?;
        Ok(Some(NextUpdate { work: update.map(|update| (update, loaded)), merged }))
    }

    /// Sums the gradients of `update` over all ranks, and returns the next update. This rank sends
    /// its gradients and its header when they are ready; it receives from other ranks while its
    /// devices compute.
    /// `agreed` is the header of `update`.
    pub(super) fn reduce(
        &mut self,
        update: &PlannedUpdate,
        agreed: &MergedHeader,
    ) -> Result<(ReducedGradient, NextUpdate), TrainError> {
        let after = self.learner.cursor_after(update);
        let next = self.pipeline.sampler.at(&after);
        let header = self.header(&after, next.as_ref());
        let (trainable, comm) = (self.session.layout.trainable_len(), &self.config.comm);
        let shards = Shards::weighted(trainable + self.terms.len(), self.pipeline.planner.shard_weights());
        let (wire, algorithm) = (wire_format(comm.wire_dtype, self.terms.len()), algorithm(comm.algorithm));
        let rank_label = self.session.rank_label();
        let sources =
            ContributionSources { devices: &mut self.session.devices, loader: &self.pipeline.loader, stop: &self.stop };
        let in_progress = self.in_progress.get_or_insert_with(|| InProgress::new(agreed.clone()));
        let mut contribution = RankContribution::new(sources, in_progress, header, rank_label, next.is_some());
        let summed = self.session.group.all_reduce(&shards, wire, algorithm, || contribution.next())?;
        let RankContribution { loaded, adding, data_wait, .. } = contribution;
        self.observer.rank = RankTime {
            host_micros: adding.as_micros() as u64,
            exchange_micros: summed.busy.as_micros() as u64,
            wait_micros: summed.waited.saturating_sub(data_wait).as_micros() as u64,
            ..RankTime::default()
        };
        let merged = self.receive_headers(&summed.notes, next.as_ref(), self.session.cluster.members.len())?;
        let mut flat = summed.data;
        let losses = flat.split_off(trainable).into_iter().map(f64::from).collect();
        let is_skipped = merged.overflow == Some(true);
        let gradient = ReducedGradient { flat, losses, is_skipped, norm: 0.0 };
        Ok((gradient, NextUpdate { work: next.zip(loaded), merged }))
    }

    /// This rank's header for the update at `cursor`, without what depends on its loaded samples
    /// and on its devices.
    fn header(&mut self, cursor: &Cursor, update: Option<&PlannedUpdate>) -> UpdateHeader {
        UpdateHeader {
            update: cursor.updates,
            plan: update.map_or(0, |update| update.fingerprint),
            layout: self.session.layout.hash(),
            samples: 0,
            counts: vec![0; self.terms.len()],
            stop: self.stop.announcement(),
            ends: self.ends_before(cursor),
            lr: self.learner.lr_at(cursor),
            checksum: self.learner.new_checksum.take(),
            saved: self.checkpointing.saved(),
            best: self.learner.state.best.as_ref().map(|best| best.update),
            devices: Vec::new(),
            rank: std::mem::take(&mut self.observer.rank),
            loss_scale: self.learner.state.loss_scale.get(),
            overflow: None,
            lost: Vec::new(),
            skipped: Vec::new(),
            computed: self.audited_samples(),
            newcomer: self.session.group.candidate(),
        }
    }

    /// With `debug.audit`: the samples that this rank computes in the update in progress.
    fn audited_samples(&self) -> Vec<u32> {
        let samples = self.in_progress.as_ref().filter(|_| self.config.debug.audit);
        samples.map_or_else(Vec::new, |in_progress| in_progress.samples.clone())
    }

    /// Exchanges headers without gradients and without times of devices.
    fn exchange_headers(
        &mut self,
        header: &UpdateHeader,
        update: Option<&PlannedUpdate>,
    ) -> Result<MergedHeader, TrainError> {
        let notes = self.session.group.all_gather_bytes(&messages::encode(header)?)?;
        self.receive_headers(&notes, update, 0)
    }

    /// Merges the headers of all ranks for `update`, which must have times of `devices` devices,
    /// and applies the result.
    fn receive_headers(
        &mut self,
        notes: &[Vec<u8>],
        update: Option<&PlannedUpdate>,
        devices: usize,
    ) -> Result<MergedHeader, TrainError> {
        let decode = |(rank, bytes): (usize, &Vec<u8>)| messages::decode(rank, bytes);
        let headers = notes.iter().enumerate().map(decode).collect::<Result<Vec<UpdateHeader>, _>>()?;
        let samples = update.map_or(0, |update| update.samples.len());
        let merged = merge_headers(&headers, samples as u64).map_err(|conflict| self.conflict(conflict))?;
        if merged.devices.len() != devices {
            return Err(self.disagreement("the devices", format!("{} of {devices} reported", merged.devices.len())));
        }
        self.checkpointing.follow(&merged, &mut self.learner.state);
        self.note_skipped(samples, &merged)?;
        Ok(merged)
    }

    /// Warns about those of the next update's `samples` that could not be read. If none could be
    /// read, the cause is not a single bad file: all ranks see it in the same headers and stop
    /// together.
    fn note_skipped(&mut self, samples: usize, merged: &MergedHeader) -> Result<(), TrainError> {
        self.observer.note_skipped(Split::Train, &merged.skipped);
        match merged.skipped.first() {
            Some(first) if merged.skipped.len() == samples => {
                let reason = format!("none of the {samples} samples of an update could be read: {}", first.reason);
                Err(self.session.task.collate_error(reason))
            }
            _ => Ok(()),
        }
    }

    /// The last exchange of a run, without work: compares the last checksum, and makes all ranks
    /// end as rank 0 does.
    pub(super) fn final_sync(&mut self) -> Result<(), TrainError> {
        let header = self.header(&self.learner.state.cursor.clone(), None);
        self.exchange_headers(&header, None)?;
        self.emit_workers();
        Ok(())
    }

    pub(super) fn disagreement(&self, what: &'static str, detail: String) -> TrainError {
        self.conflict(HeaderConflict { what, detail, odd_ranks: Vec::new() })
    }

    fn conflict(&self, conflict: HeaderConflict) -> TrainError {
        let HeaderConflict { what, detail, odd_ranks } = conflict;
        let (update, last) = (self.learner.updates(), self.checkpointing.last_checkpoint());
        TrainError::Disagreement { update, what, detail, last, odd_ranks }
    }
}

impl UpdateHeader {
    /// Adds the counts and skipped samples of this rank's loaded samples. `rank_label` names this
    /// rank in reasons.
    pub(super) fn set_work(&mut self, work: &LoadedUpdate, rank_label: Option<String>) {
        (self.samples, self.counts) = (work.samples, work.counts.clone());
        self.skipped = skipped_samples::for_peers(work.skipped.clone(), rank_label.as_deref());
    }
}

/// `auto` means direct: only there a rank's exchange can begin before all ranks have computed. By
/// the time model (`hetseq-balance`) a ring, which is as fast as its slowest link, is never faster.
fn algorithm(configured: Algorithm) -> Algorithm {
    if configured == Algorithm::Auto { Algorithm::Direct } else { configured }
}
