//! This rank's contribution to the sum of an update: its gradients as soon as its devices have
//! computed them, then its header for the next update as soon as the samples of that are loaded.
//! The all-reduce polls it whenever a device or the loader wakes the rank's thread, so this thread
//! never blocks here and notices a failed peer at once.

use std::time::{Duration, Instant};

use hetseq_comm::Contribution;

use crate::data::loader::{LoadedUpdate, Loader};
use crate::devices::{DeviceReport, Devices, LocalSum, Lost};
use crate::error::TrainError;
use crate::trainer::header::{DeviceTime, LostDevice, UpdateHeader};
use crate::trainer::messages;
use crate::trainer::stop::StopFlag;

use super::in_progress::InProgress;

pub(super) struct ContributionSources<'a> {
    pub(super) devices: &'a mut Devices,
    pub(super) loader: &'a Loader,
    pub(super) stop: &'a StopFlag,
}

pub(super) struct RankContribution<'a> {
    sources: ContributionSources<'a>,
    in_progress: &'a mut InProgress,
    header: UpdateHeader,
    rank_label: Option<String>,
    /// Whether there is a next update, whose samples the header counts.
    has_next: bool,
    /// The sum over this rank's devices, without its values, and when it became ready.
    local: Option<(LocalSum, Instant)>,
    /// The samples of the next update.
    pub(super) loaded: Option<LoadedUpdate>,
    /// How long adding up the devices took.
    pub(super) adding: Duration,
    /// How long this rank waited for samples after that.
    pub(super) data_wait: Duration,
}

impl<'a> RankContribution<'a> {
    /// `header` is this rank's, without what depends on devices and samples. Messages name the rank
    /// by `rank_label`.
    pub(super) fn new(
        sources: ContributionSources<'a>,
        in_progress: &'a mut InProgress,
        header: UpdateHeader,
        rank_label: Option<String>,
        has_next: bool,
    ) -> Self {
        let (adding, data_wait, local, loaded) = (Duration::ZERO, Duration::ZERO, None, None);
        RankContribution { sources, in_progress, header, rank_label, has_next, local, loaded, adding, data_wait }
    }

    /// Returns what has become ready since the last call.
    pub(super) fn next(&mut self) -> Result<Option<Contribution>, TrainError> {
        let mut data = None;
        if self.local.is_none() {
            let Some(mut local) = self.sources.devices.poll()? else { return Ok(None) };
            data = Some(self.in_progress.complete(&mut local));
            self.adding = local.adding;
            self.local = Some((local, Instant::now()));
        }
        if self.has_next && self.loaded.is_none() {
            self.loaded = self.sources.loader.try_take()?;
            if self.loaded.is_none() {
                return Ok(data.map(Contribution::Data));
            }
        }
        let note = self.complete_header()?;
        Ok(Some(match data {
            Some(data) => Contribution::Both { note, data },
            None => Contribution::Note(note),
        }))
    }

    /// Fills in what depends on devices and samples, and encodes the header.
    fn complete_header(&mut self) -> Result<Vec<u8>, TrainError> {
        let header = &mut self.header;
        if let Some((local, ready)) = &self.local {
            self.data_wait = ready.elapsed();
            header.devices = device_times(local);
            (header.overflow, header.lost) = (self.in_progress.overflow, self.in_progress.lost.clone());
        }
        if let Some(work) = &self.loaded {
            header.rank.data_micros = self.data_wait.as_micros() as u64;
            header.set_work(work, self.rank_label.clone());
        }
        header.stop = self.sources.stop.announcement();
        messages::encode(header)
    }
}

fn device_times(local: &LocalSum) -> Vec<DeviceTime> {
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
