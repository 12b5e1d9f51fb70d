//! What must be equal on all ranks before they train together: the run keys of the config, the
//! data, the files of the task, the program and the layout. Not paths, devices, micro-batch caps or
//! timeouts: those belong to a machine. A resume may change run keys, but the changes are reported.

use std::collections::{BTreeMap, BTreeSet};

use hetseq_comm::Identity;
use hetseq_metrics::Change;
use hetseq_optim::Layout;
use toml::{Table, Value};

use super::renamed;
use crate::error::TrainError;
use crate::task::OpenedTask;
use crate::task::compute::TaskKeys;

/// Keys that may differ between ranks, besides those that a task names
/// (`Task::PATH_KEYS`, `Task::LOCAL_KEYS`). A section name means all its keys.
const LOCAL: [&str; 15] = [
    "run.dir",
    "run.devices",
    "run.precision",
    "run.python",
    "run.log_every",
    "run.loader_threads",
    "run.memory_mib",
    "run.gpu_memory_mib",
    "batch.micro",
    "batch.max_tokens",
    "batch.probe_s",
    "comm",
    "elastic.leave_when",
    "emulate",
    "debug",
];

/// Keys of a local section that must still be equal on all ranks.
const SHARED: [&str; 3] = ["comm.wire_dtype", "comm.algorithm", "comm.measure_links"];

pub(crate) fn identity(command: &str, task: &OpenedTask, layout: &Layout) -> Result<Identity, TrainError> {
    let mut identity = Identity::new()
        .with("command", command)
        .with("version", env!("CARGO_PKG_VERSION"))
        .with("build", crate::BUILD)
        .with("data", task.data.fingerprint())
        .with("layout", format!("{:016x}", layout.hash()));
    let table: Table = task
        .config
        .parse()
        .map_err(|error| TrainError::Config(format!("the resolved config cannot be read as TOML: {error}")))?;
    for (key, value) in keys_of(&task.keys, &table) {
        identity = identity.with(key, value);
    }
    if let Some(code) = task.compute.code() {
        identity = identity.with("task code", code);
    }
    // Files may define the model beyond its layout. Their content must be equal, their paths may
    // differ.
    for (name, content) in task.compute.hugging_face().files() {
        identity = identity.with(name, hetseq_data::fingerprint(&content));
    }
    Ok(identity)
}

/// Every key of the config that is not local, with its value as TOML.
fn keys_of(task: &TaskKeys, table: &Table) -> Vec<(String, String)> {
    let mut keys = Vec::new();
    flatten("", table, &mut keys);
    let of_task = |key: &str| task.paths.iter().chain(&task.local).any(|local| is_under(key, local));
    let is_local =
        |key: &str| LOCAL.iter().any(|local| is_under(key, local)) || key.strip_prefix("task.").is_some_and(of_task);
    keys.retain(|(key, _)| SHARED.contains(&key.as_str()) || !is_local(key));
    keys
}

/// Whether a key, which is none of the task's, may differ between ranks. `comm.encrypt` and
/// `comm.transport` may not: ranks notice that when they connect.
pub(super) fn may_differ(key: &str) -> bool {
    let is_local = LOCAL.iter().any(|local| is_under(key, local));
    is_local && !SHARED.contains(&key) && !["comm.encrypt", "comm.transport"].contains(&key)
}

/// Whether `key` is `section` or inside it.
fn is_under(key: &str, section: &str) -> bool {
    key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The run keys that differ between two resolved configs, `then` and `now`; none if one of them
/// cannot be read.
pub(crate) fn changed(task: &TaskKeys, then: &str, now: &str) -> Vec<Change> {
    let keys = |text: &str| -> BTreeMap<String, String> {
        let Ok(mut table) = text.parse::<Table>() else { return BTreeMap::new() };
        renamed::rename(&mut table);
        keys_of(task, &table).into_iter().collect()
    };
    let (then, now) = (keys(then), keys(now));
    if then.is_empty() || now.is_empty() {
        return Vec::new();
    }
    let all: BTreeSet<&String> = then.keys().chain(now.keys()).collect();
    let change = |key: &String| Change { key: key.clone(), was: then.get(key).cloned(), is: now.get(key).cloned() };
    all.into_iter().map(change).filter(|change| change.was != change.is).collect()
}

fn flatten(prefix: &str, table: &Table, keys: &mut Vec<(String, String)>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Table(inner) => flatten(&key, inner, keys),
            value => keys.push((key, value.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::bert::BertTask;

    #[test]
    fn changed_run_keys_are_found() {
        let then = "[run]\nseed = 1\ndir = 'a'\n[optim]\nlr = 0.1\neps = 0.5\n[optim.schedule]\nkind = 'cosine'\n";
        let now = "[run]\nseed = 1\ndir = 'b'\n[optim]\nlr = 0.2\nclip_norm = 1.0\n[optim.schedule]\nkind = 'cosine'\n";
        let change = |key: &str, was: Option<&str>, is: Option<&str>| Change {
            key: key.to_owned(),
            was: was.map(str::to_owned),
            is: is.map(str::to_owned),
        };
        let expected = [
            change("optim.clip_norm", None, Some("1.0")),
            change("optim.eps", Some("0.5"), None),
            change("optim.lr", Some("0.1"), Some("0.2")),
        ];
        assert_eq!(changed(&TaskKeys::default(), then, now), expected);
        assert_eq!(changed(&TaskKeys::default(), then, then), []);
        assert_eq!(changed(&TaskKeys::default(), "not a config [", now), []);
        // A run directory of an older version: renamed keys have not changed.
        let old = "[run]\ntask = 'masked-words'\n[comm]\nwire = 'bf16'\n";
        let new = "[run]\ntask = 'synthetic-bert'\n[comm]\nwire_dtype = 'bf16'\n";
        assert_eq!(changed(&TaskKeys::default(), old, new), []);
    }

    /// The meaning of a key depends on the task: `init` may be the file of BERT's initial weights,
    /// or the initialization method of another task.
    #[test]
    fn a_key_is_local_only_to_the_task_that_says_so() {
        let text = "[run]\nseed = 1\ndir = 'a'\n[task]\ninit = 'xavier'\nrecompute = true\n\
                    [comm]\nwire_dtype = 'f32'\nshard_weight = 1.0\n";
        let compared = |keys: &TaskKeys| -> Vec<String> {
            keys_of(keys, &text.parse().unwrap()).into_iter().map(|(key, _)| key).collect()
        };
        let bert = TaskKeys::of::<BertTask>();
        assert_eq!(compared(&TaskKeys::default()), ["comm.wire_dtype", "run.seed", "task.init", "task.recompute"]);
        assert_eq!(compared(&bert), ["comm.wire_dtype", "run.seed"]);
    }
}
