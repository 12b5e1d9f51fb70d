//! Config keys and tasks that were renamed. Old names work for one more release: serde accepts them
//! as aliases in `schema`, and this table warns about them and translates configs of older run
//! directories before they are compared.

use toml::{Table, Value};

/// Old key and new key, with their section.
const KEYS: [(&str, &str); 4] = [
    ("comm.own", "comm.shard_weight"),
    ("comm.wire", "comm.wire_dtype"),
    ("comm.route", "comm.algorithm"),
    ("comm.measure", "comm.measure_links"),
];

/// Old and new values of `run.task`.
const TASKS: [(&str, &str); 1] = [("masked-words", "synthetic-bert")];

/// Returns the present name of a task.
pub(crate) fn task(name: &str) -> &str {
    TASKS.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| new)
}

/// Whether a key, without its section, is an old name.
pub(super) fn is_old(key: &str) -> bool {
    KEYS.iter().any(|(old, _)| old.rsplit('.').next() == Some(key))
}

/// Gives old keys and tasks in `table` their new names. Returns (old, new) of each.
pub(super) fn rename(table: &mut Table) -> Vec<(String, String)> {
    let mut renamed = Vec::new();
    for (old, new) in KEYS {
        let (Some((section, old_key)), Some((_, new_key))) = (old.split_once('.'), new.split_once('.')) else {
            continue;
        };
        if let Some(Value::Table(section)) = table.get_mut(section)
            && let Some(value) = section.remove(old_key)
        {
            section.entry(new_key).or_insert(value);
            renamed.push((old.to_owned(), new.to_owned()));
        }
    }
    if let Some(Value::String(name)) = table.get_mut("run").and_then(|run| run.get_mut("task"))
        && task(name) != name
    {
        let new = task(name).to_owned();
        renamed.push((format!("run.task = \"{name}\""), format!("run.task = \"{new}\"")));
        *name = new;
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_keys_and_tasks_get_their_new_names() {
        let mut table: Table =
            "[run]\ntask = 'masked-words'\n[comm]\nown = 0.5\nwire_dtype = 'bf16'\nroute = 'ring'\n".parse().unwrap();
        let renamed = rename(&mut table);
        let expected: Table =
            "[run]\ntask = 'synthetic-bert'\n[comm]\nshard_weight = 0.5\nwire_dtype = 'bf16'\nalgorithm = 'ring'\n"
                .parse()
                .unwrap();
        assert_eq!(table, expected);
        assert_eq!(renamed.len(), 3);
        assert_eq!(rename(&mut table), []);
    }
}
