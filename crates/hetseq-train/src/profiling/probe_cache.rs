//! Cache of probe results in the run directory, for the next start. Rank 0 has the file, as it has
//! all files of a run, and sends its content to the other ranks. A file that cannot be read counts
//! as empty.

use std::path::Path;

use fs_err as fs;
use hetseq_balance::DeviceProfile;
use serde::{Deserialize, Serialize};

const FILE: &str = "probe.json";
/// Further entries are dropped.
const MAX_ENTRIES: usize = 1000;

/// Everything a measurement depends on, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbeKey {
    pub(crate) version: String,
    pub(crate) host: String,
    pub(crate) devices: String,
    pub(crate) task: String,
    /// The task's table of the config.
    pub(crate) settings: String,
    /// The fingerprint of the samples: other data at the same path has other lengths.
    pub(crate) data: String,
    pub(crate) layout: String,
    pub(crate) precision: String,
    /// The configured limits of micro-batch sizes.
    pub(crate) limits: String,
}

/// The devices of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProbeEntry {
    pub(crate) key: ProbeKey,
    pub(crate) devices: Vec<DeviceProfile>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProbeCache(Vec<ProbeEntry>);

impl ProbeCache {
    pub(crate) fn read(dir: &Path) -> Self {
        fs::read(dir.join(FILE)).map_or_else(|_| ProbeCache::default(), |bytes| ProbeCache::parse(&bytes))
    }

    pub(crate) fn parse(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The cached profiles of devices with these names. Ranks with equal keys, such as those of one
    /// machine, have one entry each; `index` selects it.
    pub(crate) fn find(&self, key: &ProbeKey, index: usize, names: &[String]) -> Option<&[DeviceProfile]> {
        let matches =
            |entry: &&ProbeEntry| entry.key == *key && entry.devices.iter().map(|device| &device.name).eq(names);
        self.0.iter().filter(matches).nth(index).map(|entry| &entry.devices[..])
    }

    /// The cache with `newer` entries instead of those with the same keys.
    pub(crate) fn updated(self, newer: Vec<ProbeEntry>) -> Self {
        let is_other = |entry: &ProbeEntry| newer.iter().all(|new| new.key != entry.key);
        let old: Vec<ProbeEntry> = self.0.into_iter().filter(is_other).collect();
        ProbeCache(newer.into_iter().chain(old).take(MAX_ENTRIES).collect())
    }

    /// Writes the file atomically. A failure is only logged: without it the next start measures
    /// again.
    pub(crate) fn write(&self, dir: &Path) {
        if let Err(error) = hetseq_fs::replace(&dir.join(FILE), &self.to_bytes()) {
            tracing::debug!("the probe results could not be written: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use hetseq_balance::{CostPoint, CostTable};

    use super::*;

    fn entry(host: &str, micros: u64) -> ProbeEntry {
        let text = |text: &str| text.to_owned();
        let key = ProbeKey {
            version: text("1"),
            host: text(host),
            devices: text("cpu"),
            task: text("toy"),
            settings: text(""),
            data: text(""),
            layout: text("0"),
            precision: text("f32"),
            limits: text(""),
        };
        let table = CostTable::new(vec![CostPoint { samples: 1, tokens: 2, micros, bytes: 4 }]).unwrap();
        let device = DeviceProfile {
            name: text("cpu:0"),
            table,
            after_s: 0.25,
            weight: 1.0,
            max_tokens: Some(9),
            max_samples: None,
        };
        ProbeEntry { key, devices: vec![device] }
    }

    #[test]
    fn each_rank_finds_its_entry() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ProbeCache::read(dir.path()), ProbeCache::default());
        ProbeCache::default().updated(vec![entry("a", 1), entry("a", 2), entry("b", 3)]).write(dir.path());
        let cache = ProbeCache::read(dir.path()).updated(vec![entry("b", 4)]);
        let names = ["cpu:0".to_owned()];
        let found = |host, index| cache.find(&entry(host, 0).key, index, &names).map(<[_]>::to_vec);
        assert_eq!(found("a", 0), Some(entry("a", 1).devices));
        assert_eq!(found("a", 1), Some(entry("a", 2).devices));
        assert_eq!(found("a", 2), None);
        assert_eq!(found("b", 0), Some(entry("b", 4).devices));
        assert_eq!(cache.find(&entry("a", 0).key, 0, &["cpu:1".to_owned()]), None);
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert_eq!(ProbeCache::read(dir.path()), ProbeCache::default());
    }
}
