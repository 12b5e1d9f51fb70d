//! This rank's contribution to the sum of an update: the gradients as soon as its devices have them, and its header for the next
//! update as soon as the samples of that are ready. Asked for by the exchange whenever a device or the loader wakes it, so
//! that the rank's thread never blocks here and notices at once when a peer fails.

use std::time::{Duration, Instant};

use hetseq_comm::Contribution;

use crate::devices::{Devices, LocalSum};
use crate::error::TrainError;
use crate::header::Header;
use crate::loader::{Loader, Prepared};
use crate::signals::StopFlag;
use crate::task::Task;

use super::agreement::{device_times, encoded, lost_devices};

pub(super) struct Sources<'a, T: Task> {
    pub(super) devices: &'a mut Devices<T>,
    pub(super) loader: &'a Loader<T>,
    pub(super) stop: &'a StopFlag,
}

pub(super) struct Mine<'a, T: Task> {
    sources: Sources<'a, T>,
    header: Header,
    rank: usize,
    whose: Option<String>,
    /// Whether there is a next update, whose samples the header counts.
    has_next: bool,
    /// What the devices computed, and since when it is there; its values are given away.
    local: Option<(LocalSum, Instant)>,
    /// The samples of the next update.
    pub(super) prepared: Option<Prepared<T>>,
    /// How long adding up the devices took, and how long samples were waited for after that.
    pub(super) adding: Duration,
    pub(super) data_wait: Duration,
}

impl<'a, T: Task> Mine<'a, T> {
    /// With the header of rank `rank`, which is called `whose` in messages, as far as it is known.
    pub(super) fn new(
        sources: Sources<'a, T>,
        header: Header,
        (rank, whose): (usize, Option<String>),
        has_next: bool,
    ) -> Self {
        let (adding, data_wait) = (Duration::ZERO, Duration::ZERO);
        Mine { sources, header, rank, whose, has_next, local: None, prepared: None, adding, data_wait }
    }

    /// What has become ready since it was last asked for.
    pub(super) fn next(&mut self) -> Result<Option<Contribution>, TrainError> {
        let mut data = None;
        if self.local.is_none() {
            let Some(mut local) = self.sources.devices.poll()? else { return Ok(None) };
            data = Some(std::mem::take(&mut local.flat));
            self.adding = local.adding;
            self.local = Some((local, Instant::now()));
        }
        if self.has_next && self.prepared.is_none() {
            self.prepared = self.sources.loader.try_take()?;
            if self.prepared.is_none() {
                return Ok(data.map(Contribution::Data));
            }
        }
        let note = self.note()?;
        Ok(Some(match data {
            Some(data) => Contribution::Both { note, data },
            None => Contribution::Note(note),
        }))
    }

    fn note(&mut self) -> Result<Vec<u8>, TrainError> {
        let header = &mut self.header;
        if let Some((local, ready)) = &self.local {
            self.data_wait = ready.elapsed();
            header.devices = device_times(local);
            (header.overflow, header.lost) = (local.overflow, lost_devices(local));
        }
        if let Some(work) = &self.prepared {
            header.rank.data_micros = self.data_wait.as_micros() as u64;
            header.of_work(work, self.whose.clone());
        }
        header.stop = self.sources.stop.is_set();
        encoded(header, self.rank)
    }
}
