//! The reference of config keys: key, default and meaning, as Markdown tables. `hetseq config
//! reference` prints them, and the pages in `docs/` contain them. Tests compare the tables with the
//! schema, so that no key is missing and every default is right.

mod section_keys;
mod task_keys;

use std::fmt::Write;

use super::names::did_you_mean;
use super::rank_match;
use section_keys::SECTIONS;
use task_keys::TASKS;

/// Key, default and meaning, as Markdown. A default in backquotes is a value of the schema.
type KeyRow = (&'static str, &'static str, &'static str);

/// The tables of the named sections and tasks, or of all if there are no names. With more than one
/// table, each has a heading.
pub fn config_reference(names: &[String]) -> Result<String, String> {
    let known: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).chain(TASKS.iter().map(|(name, _)| *name)).collect();
    if let Some(wrong) = names.iter().find(|name| !known.contains(&name.as_str())) {
        let hint = did_you_mean(wrong, known.iter().copied());
        return Err(format!("there is no section or task `{wrong}`.{hint} Available: {}", known.join(", ")));
    }
    let is_wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    let mut tables: Vec<(String, String)> = Vec::new();
    for (name, rows) in SECTIONS.iter().filter(|(name, _)| is_wanted(name)) {
        tables.push((format!("[{name}]"), section_table(name, rows)));
    }
    for (name, parts) in TASKS.iter().filter(|(name, _)| is_wanted(name)) {
        tables.push((format!("[task] of {name}"), task_table(parts)));
    }
    Ok(match &tables[..] {
        [(_, table)] => table.clone(),
        _ => {
            let with_heading = |(title, table): &(String, String)| format!("### {title}\n\n{table}");
            tables.iter().map(with_heading).collect::<Vec<_>>().join("\n")
        }
    })
}

/// Keys that may differ between machines are marked.
fn section_table(section: &str, rows: &[KeyRow]) -> String {
    let mut text = "| key | default | meaning |\n|---|---|---|\n".to_owned();
    for (key, default, meaning) in rows {
        let key = format!("{section}.{key}");
        let mark = if rank_match::may_differ(&key) { " (*)" } else { "" };
        _ = writeln!(text, "| `{key}`{mark} | {default} | {meaning} |");
    }
    text
}

fn task_table(parts: &[&[KeyRow]]) -> String {
    let mut text = "| key | default | meaning |\n|---|---|---|\n".to_owned();
    for (key, default, meaning) in parts.iter().copied().flatten() {
        _ = writeln!(text, "| `task.{key}` | {default} | {meaning} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::Serialize;
    use serde::de::DeserializeOwned;
    use toml::{Table, Value};

    use super::*;
    use crate::config::renamed;
    use crate::config::schema::Config;
    use crate::tasks::bert::BertTaskConfig;
    use crate::tasks::fine_tuning::{EntityLinkingConfig, SequenceClassificationConfig, TokenClassificationConfig};
    use crate::tasks::images::ImageConfig;
    use crate::tasks::synthetic_bert::SyntheticBertConfig;
    use crate::tasks::translation::TranslationConfig;

    const LEAST: &str = "[run]\ntask = 'x'\n[task]\n[batch]\nglobal = 8\n[optim]\nname = 'sgd'\nlr = 1.0\n\
                         schedule = { kind = 'constant' }\n";

    /// Compares the rows of a table with the keys that serde accepts and with the defaults of a
    /// config that has only the keys in `given`.
    fn assert_equal(title: &str, rows: &[KeyRow], unknown_key_error: &str, defaults: &Table, given: &[&str]) {
        let listed = unknown_key_error.split('`').skip(1).step_by(2).filter(|key| *key != "zzz");
        let known: BTreeSet<&str> = listed.filter(|key| !renamed::is_old(key)).collect();
        let documented: BTreeSet<&str> = rows.iter().map(|(key, ..)| *key).collect();
        assert_eq!(documented, known, "{title}");
        assert_eq!(documented.len(), rows.len(), "{title}: a key twice");
        for (key, default, _) in rows {
            match defaults.get(*key) {
                _ if given.contains(key) => assert!(default.starts_with("required"), "{title}.{key}: {default}"),
                Some(value) => assert!(is_value(default, value), "{title}.{key}: {default} is not {value}"),
                None => assert!(!default.is_empty() && *default != "required", "{title}.{key}: {default}"),
            }
        }
    }

    /// Whether a default is a value of the schema, up to the rounding of `f32`.
    fn is_value(default: &str, value: &Value) -> bool {
        let text = default.trim_matches('`');
        let Ok(documented) = format!("v = {text}").parse::<Table>() else { return false };
        match (&documented["v"], value) {
            (Value::Float(a), Value::Float(b)) => (a - b).abs() < 1e-6,
            (a, b) => a == b,
        }
    }

    #[test]
    fn sections_are_those_of_the_schema() {
        let config: Config<Table> = toml::from_str(LEAST).unwrap();
        let all = Table::try_from(&config).unwrap();
        let given = ["task", "global", "name", "lr", "kind"];
        for (section, rows) in SECTIONS {
            let header = format!("[{section}]\n");
            let text = match section {
                "optim.schedule" => LEAST.replace("{ kind", "{ zzz = 1, kind"),
                _ if LEAST.contains(&header) => LEAST.replace(&header, &format!("{header}zzz = 1\n")),
                _ => format!("{LEAST}{header}zzz = 1\n"),
            };
            let error = toml::from_str::<Config<Table>>(&text).unwrap_err().message().to_owned();
            assert!(error.starts_with("unknown field"), "{section}: {error}");
            let mut defaults = section.split('.').fold(&all, |table, part| table[part].as_table().unwrap()).clone();
            defaults.remove("schedule");
            assert_equal(section, rows, &error, &defaults, &given);
        }
    }

    fn assert_task<C: Serialize + DeserializeOwned>(name: &str, least: &str) {
        let (_, parts) = TASKS.iter().find(|(task, _)| *task == name).unwrap();
        let error = toml::from_str::<C>(&format!("{least}\nzzz = 1")).err().unwrap().message().to_owned();
        let defaults = Table::try_from(toml::from_str::<C>(least).unwrap()).unwrap();
        let given: Vec<String> = least.parse::<Table>().unwrap().keys().cloned().collect();
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        assert_equal(name, &parts.concat(), &error, &defaults, &given);
    }

    #[test]
    fn task_keys_are_those_of_the_schema() {
        assert_task::<ImageConfig>("images", "data = 'x'");
        assert_task::<BertTaskConfig>("bert-pretrain", "data = 'x'");
        assert_task::<TokenClassificationConfig>("token-classification", "train = 'x'");
        assert_task::<SequenceClassificationConfig>("sequence-classification", "train = 'x'");
        assert_task::<EntityLinkingConfig>("entity-linking", "train = 'x'\nentities = 'y'");
        assert_task::<TranslationConfig>("translation", "data = 'x'");
        assert_task::<SyntheticBertConfig>("synthetic-bert", "geometry = 'tiny'");
        let names: BTreeSet<&str> = crate::Tasks::builtin().names().into_iter().collect();
        assert_eq!(TASKS.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(), names);
    }

    #[test]
    fn tables_are_chosen_by_name() {
        let valid = config_reference(&["valid".to_owned()]).unwrap();
        assert!(
            valid.starts_with("| key | default | meaning |\n|---|---|---|\n| `valid.every` | `\"1 epoch\"` |"),
            "{valid}"
        );
        let comm = config_reference(&["comm".to_owned()]).unwrap();
        assert!(comm.contains("| `comm.join_s` (*) |") && comm.contains("| `comm.encrypt` |"), "{comm}");
        let all = config_reference(&[]).unwrap();
        assert!(all.contains("### [optim.schedule]\n\n") && all.contains("### [task] of images\n\n"), "{all}");
        let wrong = config_reference(&["optm".to_owned()]).unwrap_err();
        assert!(
            wrong.starts_with("there is no section or task `optm`. Did you mean `optim`? Available: run, batch"),
            "{wrong}"
        );
    }
}
