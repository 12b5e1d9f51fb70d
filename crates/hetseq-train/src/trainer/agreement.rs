//! What ranks tell each other around an update, and what follows from it: the headers of [`crate::header`], filled in and folded.

use std::time::Instant;

use hetseq_data::Cursor;
use hetseq_metrics::Event;

use crate::checkpoint::Saver;
use crate::devices::{DeviceReport, LocalSum, Lost};
use crate::error::TrainError;
use crate::header::{self, Agreed, DeviceTime, Header, LostDevice};
use crate::itinerary::Planned;
use crate::loader::Prepared;
use crate::observer::at_update;
use crate::roster::undecodable;
use crate::skips;
use crate::task::{Task, TaskError, Which};

use super::{Next, Trainer};

impl<T: Task> Trainer<T> {
    /// Before the first update the header travels by itself.
    pub(super) fn first(&mut self) -> Result<Next<T>, TrainError> {
        let cursor = self.state.cursor.clone();
        self.crew.group.at(at_update(cursor.updates + 1));
        let coming = self.itinerary.at(&cursor);
        let mut mine = self.header(&cursor, coming.as_ref());
        let coming = match coming {
            Some(update) => {
                let asked = Instant::now();
                let work = self.loader.take()?;
                mine.rank.data_micros = asked.elapsed().as_micros() as u64;
                mine.of_work(&work, self.crew.whose());
                Some((update, work))
            }
            None => None,
        };
        let notes = self.crew.group.agree(&encoded(&mine, self.crew.group.rank())?)?;
        let agreed = self.agree(&notes, coming.as_ref().map(|(update, _)| update), 0)?;
        Ok(Next { coming, agreed })
    }

    /// What this rank says of the update at `cursor`, but for what follows from its samples and from the devices.
    pub(super) fn header(&mut self, cursor: &Cursor, coming: Option<&Planned>) -> Header {
        Header {
            update: cursor.updates,
            plan: coming.map_or(0, |update| update.fingerprint),
            layout: self.crew.layout.hash(),
            samples: 0,
            counts: vec![0; self.terms.len()],
            stop: self.stop.is_set(),
            ends: self.ends_before(cursor),
            lr: self.lr_at(cursor),
            checksum: self.pulse.checksum.take(),
            saved: self.saver.as_ref().and_then(Saver::saved),
            best: self.state.best.as_ref().map(|best| best.update),
            devices: Vec::new(),
            rank: std::mem::take(&mut self.pulse.last),
            loss_scale: self.state.loss_scale.get(),
            overflow: None,
            lost: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// What follows from everybody's headers for the update `coming`, with the times of `devices` devices.
    pub(super) fn agree(
        &mut self,
        notes: &[Vec<u8>],
        coming: Option<&Planned>,
        devices: usize,
    ) -> Result<Agreed, TrainError> {
        let mut headers = Vec::new();
        for (rank, bytes) in notes.iter().enumerate() {
            headers.push(postcard::from_bytes(bytes).map_err(|error| undecodable(rank, &error))?);
        }
        let samples = coming.map_or(0, |update| update.samples.len());
        let agreed = header::agree(&headers, samples as u64)
            .map_err(|conflict| self.disagreement(conflict.what, conflict.detail))?;
        if agreed.devices.len() != devices {
            return Err(self.disagreement("the devices", format!("{} of {devices} reported", agreed.devices.len())));
        }
        self.last_saved = agreed.saved;
        if self.state.best.as_ref().map(|best| best.update) != agreed.best {
            self.state.best = self.bests.iter().find(|best| Some(best.update) == agreed.best).cloned();
        }
        self.note_skipped(samples, &agreed)?;
        Ok(agreed)
    }

    /// Says which of the `samples` of the coming update could not be read. If that is all of them, something else is wrong than a
    /// file here and there; all ranks see it in the same headers and stop together.
    fn note_skipped(&mut self, samples: usize, agreed: &Agreed) -> Result<(), TrainError> {
        for message in self.skips.note(Which::Train, &agreed.skipped) {
            self.observer.tell(&Event::Warning { message });
        }
        match agreed.skipped.first() {
            Some(first) if agreed.skipped.len() == samples => {
                let reason = format!("none of the {samples} samples of an update could be read: {}", first.reason);
                Err(TrainError::Collate { task: T::NAME, reason: TaskError::Other(reason) })
            }
            _ => Ok(()),
        }
    }

    /// A last exchange without work: compares the last checksum, and all ranks end as rank 0 does.
    pub(super) fn settle(&mut self) -> Result<(), TrainError> {
        let mine = self.header(&self.state.cursor.clone(), None);
        let notes = self.crew.group.agree(&encoded(&mine, self.crew.group.rank())?)?;
        self.agree(&notes, None, 0)?;
        self.tell_workers();
        Ok(())
    }

    pub(super) fn disagreement(&self, what: &'static str, detail: String) -> TrainError {
        TrainError::Disagreement { update: self.state.cursor.updates, what, detail, last: self.last_checkpoint() }
    }
}

impl Header {
    /// Adds what follows from the samples that this rank has prepared.
    pub(super) fn of_work<T: Task>(&mut self, work: &Prepared<T>, whose: Option<String>) {
        (self.samples, self.counts) = (work.samples, work.counts.clone());
        self.skipped = skips::to_tell(work.skipped.clone(), whose.as_deref());
    }
}

pub(super) fn encoded(header: &Header, rank: usize) -> Result<Vec<u8>, TrainError> {
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
    let told = |Lost { device, reason, has_stand_in }: &Lost| LostDevice {
        device: *device,
        // As much of it as people read: engines may add whole backtraces.
        reason: reason.chars().take(500).collect(),
        has_stand_in: *has_stand_in,
    };
    local.lost.iter().map(told).collect()
}
