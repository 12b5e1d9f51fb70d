//! Who is in the group: every device of every rank, in one order that all ranks share, with what was measured of it.
//! Exchanged once per group.

use std::ops::Range;
use std::path::Path;

use hetseq_balance::{DeviceProfile, Line, Profile, RankProfile, Share};
use hetseq_comm::Group;

use crate::error::TrainError;
use crate::loader::MicroBatch;
use crate::probe::{Entry, Kept, ProbeKey};
use crate::run_files;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Roster {
    pub(crate) profile: Profile,
    /// (rank, name) of each device, rank by rank.
    pub(crate) members: Vec<(usize, String)>,
    /// Which of them belong to this rank.
    pub(crate) mine: Range<usize>,
    /// Per rank, what its measurements depend on; none if nothing was measured.
    pub(crate) keys: Vec<Option<ProbeKey>>,
}

/// What a rank tells of itself: its part of the sum if that is set, and its devices.
type Told = (Option<f64>, Option<ProbeKey>, Vec<DeviceProfile>);

impl Roster {
    /// Everybody's devices; `lines` and `like` are the same on all ranks, `like` as a pattern for what they hold in common.
    pub(crate) fn exchange(group: &mut Group, mine: Told, lines: Vec<Line>, like: Profile) -> Result<Self, TrainError> {
        // As JSON: what ranks of another version send is refused with words, and floats come over as they are.
        let bytes = serde_json::to_vec(&mine).map_err(|error| undecodable(group.rank(), &error))?;
        let (mut ranks, mut members, mut keys, mut range) = (Vec::new(), Vec::new(), Vec::new(), 0..0);
        for (rank, bytes) in group.agree(&bytes)?.iter().enumerate() {
            let (own, key, devices): Told = serde_json::from_slice(bytes).map_err(|error| undecodable(rank, &error))?;
            keys.push(key);
            let first = members.len();
            members.extend(devices.iter().map(|device| (rank, device.name.clone())));
            if rank == group.rank() {
                range = first..members.len();
            }
            let line = lines.get(rank).copied().unwrap_or_default();
            ranks.push(RankProfile { host: group.host(rank).to_owned(), devices, host_s: 0.0, line, own });
        }
        Ok(Roster { profile: Profile { ranks, ..like }, members, mine: range, keys })
    }

    /// What was measured, for the next start.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let entry = |(key, rank): (&Option<ProbeKey>, &RankProfile)| {
            Some(Entry { key: key.clone()?, devices: rank.devices.clone() })
        };
        self.keys.iter().zip(&self.profile.ranks).filter_map(entry).collect()
    }

    /// Rank 0: leaves what was measured in the run directory, for the next start and for `hetseq plan`.
    pub(crate) fn keep(&self, dir: &Path, profile: &Profile) {
        let entries = self.entries();
        if !entries.is_empty() {
            Kept::read(dir).renewed(entries).write(dir);
        }
        let bytes = serde_json::to_vec_pretty(profile).map_err(std::io::Error::from);
        if let Err(error) = bytes.and_then(|bytes| run_files::replace(dir, "profile.json", &bytes)) {
            tracing::debug!("the profile of the group could not be written: {error}");
        }
    }

    /// `cpu:0 of rank 2 (host)`, as it stands in messages.
    pub(crate) fn name(&self, device: usize) -> String {
        let Some((rank, name)) = self.members.get(device) else { return "a device".to_owned() };
        let host = self.profile.ranks.get(*rank).map_or("unknown", |rank| &rank.host);
        format!("{name} of rank {rank} ({host})")
    }

    /// The micro-batches of this rank's devices.
    pub(crate) fn my_micro_batches(&self, shares: &[Share], samples: &[u32], tokens: &[u32]) -> Vec<Vec<MicroBatch>> {
        let micro = |range: &Range<usize>| MicroBatch {
            samples: samples[range.clone()].to_vec(),
            longest: tokens[range.clone()].iter().copied().max().unwrap_or(0),
        };
        shares[self.mine.clone()].iter().map(|share| share.micro.iter().map(micro).collect()).collect()
    }
}

/// What cannot be read came from a program of another version, or was garbled past the checksums.
pub(crate) fn undecodable(rank: usize, error: &dyn std::fmt::Display) -> TrainError {
    TrainError::Disagreement {
        update: 0,
        what: "the form of messages",
        detail: format!("rank {rank}: {error}"),
        last: "the last checkpoint".to_owned(),
    }
}
