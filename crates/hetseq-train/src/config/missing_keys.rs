//! Finds all required keys that a config lacks, instead of the first one only. Called by `file.rs`.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::file::{KeyError, typed};

/// No config has more required keys.
const MAX_KEYS: usize = 32;

/// A key that is not given, with an example of its value in TOML.
#[derive(Debug, PartialEq, Eq)]
struct MissingKey {
    /// With its section, such as `optim.lr`; a section without required keys has no dot.
    key: String,
    example: String,
}

/// The message about all required keys that `table` lacks; none if it has all of them.
pub(super) fn missing_keys<C: DeserializeOwned>(table: &Table) -> Option<String> {
    let missing = find::<C>(table);
    let names: Vec<&str> = missing.iter().map(|missing| missing.key.as_str()).collect();
    let what = match &names[..] {
        [] => return None,
        [one] => format!("{one} is missing. Add it, with a value of your own:"),
        _ => format!("{} are missing. Add them, with values of your own:", names.join(", ")),
    };
    let (mut lines, mut in_section) = (vec![what], "");
    for MissingKey { key, example } in &missing {
        let (section, key) = key.rsplit_once('.').unwrap_or((key, ""));
        if section != in_section {
            lines.push(format!("[{section}]"));
            in_section = section;
        }
        if !key.is_empty() {
            lines.push(format!("{key} = {example}"));
        }
    }
    Some(lines.join("\n"))
}

fn find<C: DeserializeOwned>(table: &Table) -> Vec<MissingKey> {
    let (mut filled, mut found) = (table.clone(), Vec::new());
    while found.len() < MAX_KEYS
        && let Err(KeyError { missing: Some(key), .. }) = typed::<C>(&filled.to_string())
    {
        let example = fill::<C>(&mut filled, &key);
        let is_filled = example.is_some();
        found.push(MissingKey { key, example: example.unwrap_or_else(|| "...".to_owned()) });
        if !is_filled {
            break;
        }
    }
    // Keys that serde takes for optional, because they depend on others.
    let given = |section: &str, key: &str| table.get(section).is_some_and(|section| section.get(key).is_some());
    if !given("run", "max_updates") && !given("run", "max_epochs") {
        found.push(MissingKey { key: "run.max_epochs".to_owned(), example: "10    # or max_updates".to_owned() });
    }
    let optimizer = table.get("optim").and_then(|optim| optim.get("name")).and_then(Value::as_str);
    if !given("optim", "lr") && optimizer != Some("adafactor") {
        found.push(MissingKey { key: "optim.lr".to_owned(), example: "0.001".to_owned() });
    }
    // A section is only named if none of its keys is.
    let keys: Vec<String> = found.iter().map(|missing| missing.key.clone()).collect();
    found.retain(|missing| !keys.iter().any(|key| key.starts_with(&format!("{}.", missing.key))));
    let order = ["run", "task", "batch", "optim"];
    let section = |missing: &MissingKey| missing.key.split('.').next().map(str::to_owned).unwrap_or_default();
    found.sort_by_key(|missing| order.iter().position(|name| *name == section(missing)));
    found
}

/// Gives a key a value that its type accepts. Returns the value as an example.
fn fill<C: DeserializeOwned>(table: &mut Table, key: &str) -> Option<String> {
    let known = match key {
        "run.task" => Some("images"),
        "optim.name" => Some("adam"),
        _ => None,
    };
    let text = known.map_or("...", |known| known);
    let number = if key == "batch.global" { 64 } else { 1 };
    for value in [Value::Table(Table::new()), Value::Integer(number), Value::String(text.to_owned())] {
        let mut tried = table.clone();
        let example = value.to_string();
        set(&mut tried, key, value);
        let is_accepted = match typed::<C>(&tried.to_string()) {
            Ok(_) => true,
            Err(error) => error.missing.is_some_and(|missing| missing != key) || error.path != key,
        };
        if is_accepted {
            *table = tried;
            return Some(example);
        }
    }
    None
}

/// Sets a key with its section, or a section.
fn set(table: &mut Table, key: &str, value: Value) {
    let Some((section, rest)) = key.split_once('.') else {
        table.insert(key.to_owned(), value);
        return;
    };
    let inner = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(inner) = inner {
        set(inner, rest, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::bert::BertTaskConfig;

    fn message(text: &str) -> Option<String> {
        missing_keys::<BertTaskConfig>(&text.parse().unwrap())
    }

    #[test]
    fn all_missing_keys_are_named_at_once() {
        let expected = "run.task, run.max_epochs, task.data, batch.global, optim.name, optim.lr are missing. \
                        Add them, with values of your own:\n[run]\ntask = \"images\"\nmax_epochs = 10    # or max_updates\n\
                        [task]\ndata = \"...\"\n[batch]\nglobal = 64\n[optim]\nname = \"adam\"\nlr = 0.001";
        assert_eq!(message("").unwrap(), expected);
        let rest = "[run]\ntask = 'bert-pretrain'\nmax_updates = 1\n[batch]\nglobal = 1\n[optim]\nname = 'adam'\n";
        let expected = "task.data, optim.lr are missing. Add them, with values of your own:\n[task]\ndata = \"...\"\n\
                        [optim]\nlr = 0.001";
        assert_eq!(message(rest).unwrap(), expected);
        let own_rate = rest.replace("adam", "adafactor");
        let expected = "task.data is missing. Add it, with a value of your own:\n[task]\ndata = \"...\"";
        assert_eq!(message(&own_rate).unwrap(), expected);
        assert_eq!(message(&format!("{own_rate}[task]\ndata = 'x'\n")), None);
    }
}
