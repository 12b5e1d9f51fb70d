//! Profiles of all devices of all ranks, in one order that all ranks share. Exchanged once per
//! group by the session; the trainer plans with it.

use std::ops::Range;
use std::path::Path;

use hetseq_balance::{AssignedWork, DeviceProfile, LinkProfile, Profile, RankProfile, Share};
use hetseq_comm::Group;

use crate::data::loader::MicroBatch;
use crate::error::TrainError;
use crate::profiling::probe::{ProbeCache, ProbeEntry, ProbeKey};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClusterProfile {
    pub(crate) profile: Profile,
    /// (rank, name) of each device, rank by rank.
    pub(crate) members: Vec<(usize, String)>,
    /// The members of this rank.
    pub(crate) local: Range<usize>,
    /// Per rank, the cache key of its measurements; none if nothing was measured.
    pub(crate) keys: Vec<Option<ProbeKey>>,
    /// Per rank, its number at the start.
    pub(crate) original_ranks: Vec<usize>,
}

/// What a rank sends: its configured shard weight, the cache key of its measurements, its devices.
pub(crate) type RankDevices = (Option<f64>, Option<ProbeKey>, Vec<DeviceProfile>);

/// What a newcomer learns about the ranks: profile, cache keys, numbers at the start.
pub(crate) type SharedCluster = (Profile, Vec<Option<ProbeKey>>, Vec<usize>);

impl ClusterProfile {
    /// A cluster without ranks, of a profile without ranks.
    pub(crate) fn empty(profile: Profile) -> Self {
        ClusterProfile { profile, members: Vec::new(), local: 0..0, keys: Vec::new(), original_ranks: Vec::new() }
    }

    /// Keeps only the `survivors`, in this order. `rank` is the new number of this rank.
    pub(crate) fn keep(&mut self, survivors: &[usize], rank: usize) {
        let keep = |at: &usize| survivors.contains(at);
        let kept: Vec<usize> = (0..self.profile.ranks.len()).filter(keep).collect();
        self.profile.ranks = kept.iter().map(|&at| self.profile.ranks[at].clone()).collect();
        self.keys = kept.iter().map(|&at| self.keys[at].clone()).collect();
        self.original_ranks = kept.iter().map(|&at| self.original_ranks[at]).collect();
        self.number_members(rank);
    }

    /// Adds a newcomer as the last rank. Its number is the lowest that is free, so a worker that
    /// returns has its number again if no other has taken it. Its link counts as the slowest. `rank`
    /// is this rank.
    pub(crate) fn add(&mut self, host: String, report: RankDevices, rank: usize) {
        let (shard_weight, key, mut devices) = report;
        // Without a measurement it would seem to be far slower than the others, get nothing to compute,
        // and never be measured. As fast as the first of them is a start that is corrected soon.
        let known = self.profile.ranks.iter().flat_map(|rank| &rank.devices).next();
        for (device, known) in devices.iter_mut().zip(known.into_iter().cycle()) {
            if !device.table.is_measured() {
                (device.table, device.after_s) = (known.table.clone(), known.after_s);
            }
        }
        let number = (0..).find(|number| !self.original_ranks.contains(number)).unwrap_or_default();
        let slowest = |slowest: LinkProfile, link: LinkProfile| LinkProfile {
            bytes_per_s: slowest.bytes_per_s.min(link.bytes_per_s),
            latency_s: slowest.latency_s.max(link.latency_s),
        };
        let link = self.profile.ranks.iter().map(|rank| rank.link).reduce(slowest).unwrap_or_default();
        self.profile.ranks.push(RankProfile { host, devices, host_s: 0.0, link, shard_weight });
        self.keys.push(key);
        self.original_ranks.push(number);
        self.number_members(rank);
    }

    /// What this rank reports about itself.
    pub(crate) fn report(&self, rank: usize) -> RankDevices {
        let profile = self.profile.ranks.get(rank);
        let devices = profile.map_or_else(Vec::new, |profile| profile.devices.clone());
        (profile.and_then(|profile| profile.shard_weight), self.keys.get(rank).cloned().flatten(), devices)
    }

    /// Numbers the devices of all ranks. `rank` is this rank.
    fn number_members(&mut self, rank: usize) {
        let of_rank = |(rank, profile): (usize, &RankProfile)| -> Vec<(usize, String)> {
            profile.devices.iter().map(|device| (rank, device.name.clone())).collect()
        };
        self.members = self.profile.ranks.iter().enumerate().flat_map(of_rank).collect();
        let below = |wanted: usize| self.members.iter().filter(|(at, _)| *at < wanted).count();
        self.local = below(rank)..below(rank + 1);
    }

    /// The same cluster as on rank 0, which has sent it.
    pub(crate) fn follow(&mut self, (profile, keys, original_ranks): SharedCluster, rank: usize) {
        (self.profile, self.keys, self.original_ranks) = (profile, keys, original_ranks);
        self.number_members(rank);
    }

    pub(crate) fn shared(&self) -> SharedCluster {
        (self.profile.clone(), self.keys.clone(), self.original_ranks.clone())
    }

    /// Exchanges the devices of all ranks. `links` and `template`, the profile without ranks, are
    /// equal on all ranks.
    pub(crate) fn exchange(
        group: &mut Group,
        local: RankDevices,
        links: Vec<LinkProfile>,
        template: Profile,
    ) -> Result<Self, TrainError> {
        // As JSON, because a cost table may be written as one number, which JSON shows. Floats keep
        // their value.
        let json = serde_json::to_vec(&local).map_err(|error| TrainError::Encode { reason: error.to_string() })?;
        let (mut ranks, mut members, mut keys, mut local_devices) = (Vec::new(), Vec::new(), Vec::new(), 0..0);
        for (rank, json) in group.all_gather_bytes(&json)?.iter().enumerate() {
            let (shard_weight, key, devices): RankDevices =
                serde_json::from_slice(json).map_err(|error| TrainError::Decode { rank, reason: error.to_string() })?;
            keys.push(key);
            let first = members.len();
            members.extend(devices.iter().map(|device| (rank, device.name.clone())));
            if rank == group.rank() {
                local_devices = first..members.len();
            }
            let link = links.get(rank).copied().unwrap_or_default();
            ranks.push(RankProfile { host: group.host(rank).to_owned(), devices, host_s: 0.0, link, shard_weight });
        }
        let original_ranks = (0..ranks.len()).collect();
        let profile = Profile { ranks, ..template };
        Ok(ClusterProfile { profile, members, local: local_devices, keys, original_ranks })
    }

    /// The measurements, for the next start.
    pub(crate) fn cache_entries(&self) -> Vec<ProbeEntry> {
        let entry = |(key, rank): (&Option<ProbeKey>, &RankProfile)| {
            Some(ProbeEntry { key: key.clone()?, devices: rank.devices.clone() })
        };
        self.keys.iter().zip(&self.profile.ranks).filter_map(entry).collect()
    }

    /// On rank 0: writes measurements and profile to the run directory, for the next start and for
    /// `hetseq plan`.
    pub(crate) fn write(&self, dir: &Path, profile: &Profile) {
        let cache_entries = self.cache_entries();
        if !cache_entries.is_empty() {
            ProbeCache::read(dir).updated(cache_entries).write(dir);
        }
        let bytes = serde_json::to_vec_pretty(profile).map_err(std::io::Error::from);
        if let Err(error) = bytes.and_then(|bytes| hetseq_fs::replace(&dir.join("profile.json"), &bytes)) {
            tracing::debug!("the profile of the group could not be written: {error}");
        }
    }

    /// A device's name for messages, such as `cpu:0 of rank 2 (host)`.
    pub(crate) fn name(&self, device: usize) -> String {
        let Some((rank, name)) = self.members.get(device) else { return "a device".to_owned() };
        let host = self.profile.ranks.get(*rank).map_or("unknown", |rank| &rank.host);
        format!("{name} of rank {rank} ({host})")
    }

    /// The part of an update that each rank computes; that of each device if there is only one rank.
    pub(crate) fn shares(&self, work: &[AssignedWork]) -> Vec<f64> {
        match self.profile.ranks.len() {
            1 => parts(work.iter().map(|work| work.samples).collect()),
            _ => self.rank_shares(work),
        }
    }

    /// The part of an update that each rank computes.
    pub(crate) fn rank_shares(&self, work: &[AssignedWork]) -> Vec<f64> {
        let mut samples = vec![0; self.profile.ranks.len()];
        for (work, (rank, _)) in work.iter().zip(&self.members) {
            if let Some(sum) = samples.get_mut(*rank) {
                *sum += work.samples;
            }
        }
        parts(samples)
    }

    /// The micro-batches of this rank's devices.
    pub(crate) fn local_micro_batches(
        &self,
        shares: &[Share],
        samples: &[u32],
        tokens: &[u32],
    ) -> Vec<Vec<MicroBatch>> {
        let micro = |range: &Range<usize>| MicroBatch {
            samples: samples[range.clone()].to_vec(),
            longest: tokens[range.clone()].iter().copied().max().unwrap_or(0),
        };
        shares[self.local.clone()].iter().map(|share| share.micro.iter().map(micro).collect()).collect()
    }
}
/// Each count as a part of all.
fn parts(samples: Vec<u64>) -> Vec<f64> {
    let all = samples.iter().sum::<u64>().max(1) as f64;
    samples.into_iter().map(|samples| samples as f64 / all).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &str) -> RankDevices {
        let table = hetseq_balance::CostTable::proportional(1.0);
        let name = name.to_owned();
        let device = DeviceProfile { name, table, after_s: 0.0, weight: 1.0, max_tokens: None, max_samples: None };
        (None, None, vec![device])
    }

    #[test]
    fn a_newcomer_is_the_last_rank_and_takes_a_free_number() {
        let template = Profile { task: String::new(), parameters: 1, exchange_bytes: 4, ranks: Vec::new() };
        let mut cluster = ClusterProfile::empty(template);
        for host in ["a", "b", "c"] {
            cluster.add(host.to_owned(), report(host), 0);
        }
        assert_eq!((&cluster.original_ranks[..], cluster.local.clone()), (&[0, 1, 2][..], 0..1));
        cluster.keep(&[0, 2], 1);
        assert_eq!((&cluster.original_ranks[..], cluster.local.clone()), (&[0, 2][..], 1..2));
        cluster.add("d".to_owned(), report("d"), 1);
        assert_eq!(cluster.original_ranks, [0, 2, 1]);
        assert_eq!(cluster.name(2), "d of rank 2 (d)");
        assert_eq!(cluster.report(2), report("d"));
        // It was not measured: it counts as fast as the first.
        cluster.profile.ranks[0].devices[0].table = hetseq_balance::CostTable::proportional(0.5);
        cluster.add("e".to_owned(), report("e"), 1);
        assert_eq!(cluster.report(3).2[0].table, cluster.report(0).2[0].table);
        let mut other = ClusterProfile::empty(cluster.profile.clone());
        other.follow(cluster.shared(), 2);
        assert_eq!((&other.members, other.local), (&cluster.members, 2..3));
    }
}
