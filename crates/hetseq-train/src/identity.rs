//! What must be the same on all ranks before they may train together: the run keys of the config, the data, the program
//! and the layout. Not paths, devices, micro-batch caps or timeouts: those belong to a machine.

use hetseq_comm::Identity;
use hetseq_optim::Layout;
use serde::Serialize;
use toml::{Table, Value};

use crate::config::Config;
use crate::error::TrainError;

/// Keys that may differ from rank to rank. A section name stands for all its keys.
const LOCAL: [&str; 10] = [
    "run.dir",
    "run.devices",
    "run.log_every",
    "run.loader_threads",
    "task.data",
    "batch.micro",
    "batch.max_tokens",
    "comm",
    "emulate",
    "debug",
];

pub(crate) fn identity<C: Serialize>(
    command: &str,
    config: &Config<C>,
    data: &str,
    layout: &Layout,
) -> Result<Identity, TrainError> {
    let mut identity = Identity::new()
        .with("command", command)
        .with("version", env!("CARGO_PKG_VERSION"))
        .with("data", data)
        .with("layout", format!("{:016x}", layout.hash()));
    for (key, value) in run_keys(config)? {
        identity = identity.with(key, value);
    }
    Ok(identity)
}

/// Every key of the config that is not local, with its value as TOML.
fn run_keys<C: Serialize>(config: &Config<C>) -> Result<Vec<(String, String)>, TrainError> {
    let table = Table::try_from(config)
        .map_err(|error| TrainError::Config(format!("the config cannot be written as TOML: {error}")))?;
    let mut keys = Vec::new();
    flatten("", &table, &mut keys);
    keys.retain(|(key, _)| !LOCAL.iter().any(|local| key == local || key.starts_with(&format!("{local}."))));
    Ok(keys)
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
