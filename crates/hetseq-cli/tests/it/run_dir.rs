//! Reads a run directory: events, losses, gradients, audits, checkpoints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fs_err as fs;
use hetseq_metrics::Event;
use safetensors::SafeTensors;
use tempfile::TempDir;

use crate::data::scratch;

/// A temporary run directory, removed on drop.
pub(crate) struct RunDir(TempDir);

impl RunDir {
    pub(crate) fn new() -> Self {
        RunDir(TempDir::new_in(scratch()).unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// All events. A line that is still being written is skipped.
    pub(crate) fn events(&self) -> Vec<Event> {
        let text = fs::read_to_string(self.path().join("metrics.jsonl")).unwrap_or_default();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    }

    /// What `select` finds in the events, in order.
    fn select<T, Found: FromIterator<T>>(&self, select: impl FnMut(Event) -> Option<T>) -> Found {
        self.events().into_iter().filter_map(select).collect()
    }

    /// The loss of each update. Each update must occur once.
    pub(crate) fn losses(&self) -> BTreeMap<u64, f64> {
        let mut losses = BTreeMap::new();
        for event in self.events() {
            if let Event::Update { update, loss, .. } = event {
                assert_eq!(losses.insert(update, loss), None, "update {update} occurs twice");
            }
        }
        losses
    }

    /// A loss term of each update.
    pub(crate) fn term(&self, name: &str) -> BTreeMap<u64, f64> {
        self.select(|event| match event {
            Event::Update { update, terms, .. } => Some((update, terms[name])),
            _ => None,
        })
    }

    /// The checksum of the parameters after each update.
    pub(crate) fn checksums(&self) -> Vec<String> {
        self.select(|event| match event {
            Event::Update { checksum, .. } => checksum,
            _ => None,
        })
    }

    /// The learning rate of each update.
    pub(crate) fn learning_rates(&self) -> BTreeMap<u64, f64> {
        self.select(|event| match event {
            Event::Update { update, lr, .. } => Some((update, lr)),
            _ => None,
        })
    }

    /// (update, config key) of each early stop.
    pub(crate) fn early_stops(&self) -> Vec<(u64, String)> {
        self.select(|event| match event {
            Event::EarlyStop { update, rule, .. } => Some((update, rule)),
            _ => None,
        })
    }

    /// (key, old value, new value) of the settings in which the last process group differed from
    /// its checkpoint.
    pub(crate) fn changed(&self) -> Vec<(String, String, String)> {
        let changed = |event| match event {
            Event::Start { changed, .. } => Some(changed),
            _ => None,
        };
        let text = |value: Option<String>| value.unwrap_or_default();
        let last = self.events().into_iter().filter_map(changed).next_back().unwrap();
        last.into_iter().map(|change| (change.key, text(change.was), text(change.is))).collect()
    }

    /// Loss and accuracy of the validation after each update.
    pub(crate) fn validations(&self) -> BTreeMap<u64, (f64, f64)> {
        self.select(|event| match event {
            Event::Valid { update, loss, metrics, .. } => Some((update, (loss, metrics["accuracy"]))),
            _ => None,
        })
    }

    /// (ranks, update resumed at) of each process group.
    pub(crate) fn starts(&self) -> Vec<(usize, u64)> {
        self.select(|event| match event {
            Event::Start { world, resumed_at, .. } => Some((world, resumed_at)),
            _ => None,
        })
    }

    /// (last update, outcome) of the process group that ended last.
    pub(crate) fn end(&self) -> (u64, String) {
        match self.events().pop() {
            Some(Event::End { update, outcome, .. }) => (update, outcome),
            other => panic!("the last event is {other:?}"),
        }
    }

    /// The samples of all updates, added up.
    pub(crate) fn samples(&self) -> usize {
        let samples = |event| match event {
            Event::Update { samples, .. } => samples as usize,
            _ => 0,
        };
        self.events().into_iter().map(samples).sum()
    }

    /// Lost ranks, ranks that left, new groups and new leads, in order.
    pub(crate) fn membership_events(&self) -> Vec<String> {
        self.select(|event| match event {
            Event::Lost { rank, .. } => Some(format!("lost {rank}")),
            Event::Left { rank, .. } => Some(format!("left {rank}")),
            Event::Regrouped { world, .. } => Some(format!("regrouped {world}")),
            Event::Joined { rank, .. } => Some(format!("joined {rank}")),
            Event::Lead { .. } => Some("lead".to_owned()),
            _ => None,
        })
    }

    /// The messages of all warnings.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.select(|event| match event {
            Event::Warning { message } => Some(message),
            _ => None,
        })
    }

    /// The updates of all checkpoint events.
    pub(crate) fn saved(&self) -> Vec<u64> {
        self.select(|event| match event {
            Event::Checkpoint { update, .. } => Some(update),
            _ => None,
        })
    }

    /// The reduced gradient of an update, by tensor.
    pub(crate) fn gradient(&self, update: u64) -> BTreeMap<String, Vec<f32>> {
        self.tensors(&format!("gradients/update-{update}.safetensors"))
    }

    /// The values of a file of tensors, by name.
    pub(crate) fn tensors(&self, file: &str) -> BTreeMap<String, Vec<f32>> {
        let bytes = fs::read(self.path().join(file)).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let value = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
        let values = |data: &[u8]| data.chunks_exact(4).map(value).collect();
        file.tensors().into_iter().map(|(name, tensor)| (name, values(tensor.data()))).collect()
    }

    /// (update, epoch, samples) that a rank computed.
    pub(crate) fn audit(&self, rank: usize) -> Vec<(u64, u64, Vec<u32>)> {
        let text = fs::read_to_string(self.path().join(format!("audit-rank-{rank}.jsonl"))).unwrap();
        let entry = |line: &str| {
            let mut entry: serde_json::Value = serde_json::from_str(line).unwrap();
            let samples = serde_json::from_value(entry["samples"].take()).unwrap();
            (entry["update"].as_u64().unwrap(), entry["epoch"].as_u64().unwrap(), samples)
        };
        text.lines().map(entry).collect()
    }

    pub(crate) fn checkpoint(&self, name: &str) -> PathBuf {
        self.path().join("checkpoints").join(name)
    }

    /// Names of the checkpoint directories, sorted, without the links.
    pub(crate) fn checkpoints(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path().join("checkpoints")).unwrap().map(Result::unwrap);
        let directories = entries.filter(|entry| entry.file_type().unwrap().is_dir());
        let mut names: Vec<String> = directories.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The target of the link `last` or `best`.
    pub(crate) fn link(&self, name: &str) -> String {
        fs::read_link(self.checkpoint(name)).unwrap().into_os_string().into_string().unwrap()
    }

    /// Every file with its content, and every link with its target.
    pub(crate) fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut contents = BTreeMap::new();
        let mut dirs = vec![self.path().to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                let (path, kind) = (entry.path(), entry.file_type().unwrap());
                if kind.is_dir() {
                    dirs.push(path);
                } else if kind.is_symlink() {
                    contents.insert(path.clone(), fs::read_link(path).unwrap().into_os_string().into_encoded_bytes());
                } else {
                    contents.insert(path.clone(), fs::read(path).unwrap());
                }
            }
        }
        contents
    }
}
