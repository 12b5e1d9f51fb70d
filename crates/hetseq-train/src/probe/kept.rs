//! What probes found, kept in the run directory for the next start. Rank 0 has the file, as it has all files of a run, and hands
//! what is in it to the others. A file that cannot be read is as good as none.

use std::path::Path;

use fs_err as fs;
use hetseq_balance::DeviceProfile;
use serde::{Deserialize, Serialize};

use crate::run_files;

const FILE: &str = "probe.json";
/// More groups of devices than these are not remembered.
const MOST: usize = 1000;

/// All that a measurement depends on, as far as it can be known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
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
    /// What the sizes were bounded by.
    pub(crate) limits: String,
}

/// The devices of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) devices: Vec<DeviceProfile>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept(Vec<Entry>);

impl Kept {
    pub(crate) fn read(dir: &Path) -> Self {
        fs::read(dir.join(FILE)).map_or_else(|_| Kept::default(), |bytes| Kept::parse(&bytes))
    }

    pub(crate) fn parse(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What is kept for devices of these names. Of several ranks that are alike, such as those of one machine, the `turn`-th has its own.
    pub(crate) fn find(&self, key: &Key, turn: usize, names: &[String]) -> Option<&[DeviceProfile]> {
        let is_ours = |entry: &&Entry| entry.key == *key && entry.devices.iter().map(|device| &device.name).eq(names);
        self.0.iter().filter(is_ours).nth(turn).map(|entry| &entry.devices[..])
    }

    /// With `newer` in the place of what there was of the same kind.
    pub(crate) fn renewed(self, newer: Vec<Entry>) -> Self {
        let is_old = |entry: &Entry| newer.iter().all(|new| new.key != entry.key);
        let old: Vec<Entry> = self.0.into_iter().filter(is_old).collect();
        Kept(newer.into_iter().chain(old).take(MOST).collect())
    }

    /// Keeps it: whole, or not at all. Without it the next start measures again, which is worth a word and no more.
    pub(crate) fn write(&self, dir: &Path) {
        if let Err(error) = run_files::replace(dir, FILE, &self.to_bytes()) {
            tracing::debug!("what was measured of the devices could not be kept: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use hetseq_balance::{CostTable, Point};

    use super::*;

    fn entry(host: &str, micros: u64) -> Entry {
        let text = |text: &str| text.to_owned();
        let key = Key {
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
        let table = CostTable::new(vec![Point { samples: 1, tokens: 2, micros, bytes: 4 }]).unwrap();
        let device = DeviceProfile {
            name: text("cpu:0"),
            table,
            after_s: 0.25,
            weight: 1.0,
            max_tokens: Some(9),
            max_samples: None,
        };
        Entry { key, devices: vec![device] }
    }

    #[test]
    fn what_is_kept_is_found_by_those_whose_it_is() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Kept::read(dir.path()), Kept::default());
        Kept::default().renewed(vec![entry("a", 1), entry("a", 2), entry("b", 3)]).write(dir.path());
        let kept = Kept::read(dir.path()).renewed(vec![entry("b", 4)]);
        let names = ["cpu:0".to_owned()];
        let found = |host, turn| kept.find(&entry(host, 0).key, turn, &names).map(<[_]>::to_vec);
        assert_eq!(found("a", 0), Some(entry("a", 1).devices));
        assert_eq!(found("a", 1), Some(entry("a", 2).devices));
        assert_eq!(found("a", 2), None);
        assert_eq!(found("b", 0), Some(entry("b", 4).devices));
        assert_eq!(kept.find(&entry("a", 0).key, 0, &["cpu:1".to_owned()]), None);
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert_eq!(Kept::read(dir.path()), Kept::default());
    }
}
