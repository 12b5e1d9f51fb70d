//! Sending and receiving the update headers of [`crate::trainer::header`]: fills in this rank's,
//! merges those of all ranks, and applies the result to the trainer.

use std::time::Instant;

use hetseq_data::Cursor;
use hetseq_metrics::Event;

use crate::checkpoint::CheckpointWriter;
use crate::data::loader::LoadedUpdate;
use crate::data::update_sampler::PlannedUpdate;
use crate::devices::{DeviceReport, LocalSum, Lost};
use crate::error::TrainError;
use crate::profiling::cluster::undecodable;
use crate::run_dir::events::at_update;
use crate::task::skipped_samples;
use crate::task::{Split, Task, TaskError};
use crate::trainer::header::{DeviceTime, LostDevice, MergedHeader, UpdateHeader, merge_headers};

use super::{NextUpdate, Trainer};

impl<T: Task> Trainer<T> {
    /// Returns the first update of this process. No gradients precede it, so its headers are
    /// exchanged by themselves.
    pub(super) fn exchange_first_headers(&mut self) -> Result<NextUpdate<T>, TrainError> {
        let cursor = self.state.cursor.clone();
        self.session.group.at(at_update(cursor.updates + 1));
        let update = self.sampler.at(&cursor);
        let mut header = self.header(&cursor, update.as_ref());
        let loaded = match &update {
            Some(_) => {
                let started = Instant::now();
                let loaded = self.loader.take()?;
                header.rank.data_micros = started.elapsed().as_micros() as u64;
                header.set_work(&loaded, self.session.rank_label());
                Some(loaded)
            }
            None => None,
        };
        let merged = self.exchange_headers(&header, update.as_ref())?;
        Ok(NextUpdate { work: update.zip(loaded), merged })
    }

    /// This rank's header for the update at `cursor`, without what depends on its loaded samples
    /// and on its devices.
    pub(super) fn header(&mut self, cursor: &Cursor, update: Option<&PlannedUpdate>) -> UpdateHeader {
        UpdateHeader {
            update: cursor.updates,
            plan: update.map_or(0, |update| update.fingerprint),
            layout: self.session.layout.hash(),
            samples: 0,
            counts: vec![0; self.terms.len()],
            stop: self.stop.is_set(),
            ends: self.ends_before(cursor),
            lr: self.lr_at(cursor),
            checksum: self.timings.checksum.take(),
            saved: self.writer.as_ref().and_then(CheckpointWriter::saved),
            best: self.state.best.as_ref().map(|best| best.update),
            devices: Vec::new(),
            rank: std::mem::take(&mut self.timings.rank),
            loss_scale: self.state.loss_scale.get(),
            overflow: None,
            lost: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// Exchanges headers without gradients and without times of devices.
    fn exchange_headers(
        &mut self,
        header: &UpdateHeader,
        update: Option<&PlannedUpdate>,
    ) -> Result<MergedHeader, TrainError> {
        let notes = self.session.group.all_gather_bytes(&encode(header, self.session.group.rank())?)?;
        self.receive_headers(&notes, update, 0)
    }

    /// Merges the headers of all ranks for `update`, which must have times of `devices` devices,
    /// and applies the result.
    pub(super) fn receive_headers(
        &mut self,
        notes: &[Vec<u8>],
        update: Option<&PlannedUpdate>,
        devices: usize,
    ) -> Result<MergedHeader, TrainError> {
        let mut headers = Vec::new();
        for (rank, bytes) in notes.iter().enumerate() {
            headers.push(postcard::from_bytes(bytes).map_err(|error| undecodable(rank, &error))?);
        }
        let samples = update.map_or(0, |update| update.samples.len());
        let merged = merge_headers(&headers, samples as u64)
            .map_err(|conflict| self.disagreement(conflict.what, conflict.detail))?;
        if merged.devices.len() != devices {
            return Err(self.disagreement("the devices", format!("{} of {devices} reported", merged.devices.len())));
        }
        self.last_saved = merged.saved;
        if self.state.best.as_ref().map(|best| best.update) != merged.best {
            self.state.best = self.bests.iter().find(|best| Some(best.update) == merged.best).cloned();
        }
        self.note_skipped(samples, &merged)?;
        Ok(merged)
    }

    /// Warns about those of the next update's `samples` that could not be read. If none could be
    /// read, the cause is not a single bad file: all ranks see it in the same headers and stop
    /// together.
    fn note_skipped(&mut self, samples: usize, merged: &MergedHeader) -> Result<(), TrainError> {
        for message in self.skipped_samples.note(Split::Train, &merged.skipped) {
            self.events.emit(&Event::Warning { message });
        }
        match merged.skipped.first() {
            Some(first) if merged.skipped.len() == samples => {
                let reason = format!("none of the {samples} samples of an update could be read: {}", first.reason);
                Err(TrainError::Collate { task: T::NAME, reason: TaskError::Other(reason) })
            }
            _ => Ok(()),
        }
    }

    /// The last exchange of a run, without work: compares the last checksum, and makes all ranks
    /// end as rank 0 does.
    pub(super) fn final_sync(&mut self) -> Result<(), TrainError> {
        let header = self.header(&self.state.cursor.clone(), None);
        self.exchange_headers(&header, None)?;
        self.emit_workers();
        Ok(())
    }

    pub(super) fn disagreement(&self, what: &'static str, detail: String) -> TrainError {
        TrainError::Disagreement { update: self.state.cursor.updates, what, detail, last: self.last_checkpoint() }
    }
}

impl UpdateHeader {
    /// Adds the counts and skipped samples of this rank's loaded samples. `rank_label` names this
    /// rank in reasons.
    pub(super) fn set_work<T: Task>(&mut self, work: &LoadedUpdate<T>, rank_label: Option<String>) {
        (self.samples, self.counts) = (work.samples, work.counts.clone());
        self.skipped = skipped_samples::for_peers(work.skipped.clone(), rank_label.as_deref());
    }
}

pub(super) fn encode(header: &UpdateHeader, rank: usize) -> Result<Vec<u8>, TrainError> {
    postcard::to_stdvec(header).map_err(|error| undecodable(rank, &error))
}

pub(super) fn device_times(local: &LocalSum) -> Vec<DeviceTime> {
    let time = |report: &DeviceReport| DeviceTime {
        micros: report.compute.as_micros() as u64,
        after_micros: report.after.as_micros() as u64,
        most_tokens: report.most_tokens,
    };
    local.devices.iter().map(time).collect()
}

pub(super) fn lost_devices(local: &LocalSum) -> Vec<LostDevice> {
    let lost = |Lost { device, reason, has_replacement }: &Lost| LostDevice {
        device: *device,
        // Shortened: backends may add whole backtraces.
        reason: reason.chars().take(500).collect(),
        has_replacement: *has_replacement,
    };
    local.lost.iter().map(lost).collect()
}
