//! From `run.toml` and `--set` to a typed [`Config`]: a wrong key is named with file, line and the nearest right one.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::config::Config;
use crate::error::TrainError;
use crate::overrides;
use crate::task::Task;

/// What the user gave: the text of a config file and the values set on the command line, not yet typed.
#[derive(Debug, Clone)]
pub struct ConfigSource {
    path: PathBuf,
    text: String,
    sets: Vec<String>,
    /// `--optimizer-overrides`: keys of `[optim]`, applied last.
    overrides: Vec<(String, Value)>,
}

impl ConfigSource {
    pub fn read(path: &Path, sets: &[String]) -> Result<Self, TrainError> {
        let text = fs_err::read_to_string(path).map_err(|error| TrainError::Config(error.to_string()))?;
        Ok(ConfigSource { path: path.to_owned(), text, sets: sets.to_vec(), overrides: Vec::new() })
    }

    pub fn from_text(name: &str, text: String, sets: &[String]) -> Self {
        ConfigSource { path: PathBuf::from(name), text, sets: sets.to_vec(), overrides: Vec::new() }
    }

    /// With settings of the optimizer as `--optimizer-overrides` has them: `lr=1e-4,weight_decay=0.1`, or as a Python
    /// dictionary.
    pub fn override_optimizer(mut self, text: &str) -> Result<Self, TrainError> {
        self.overrides = overrides::parse(text).map_err(TrainError::Config)?;
        Ok(self)
    }

    /// Whether [`ConfigSource::override_optimizer`] changed anything.
    pub fn has_overrides(&self) -> bool {
        !self.overrides.is_empty()
    }

    /// The task's name, needed before its table can be typed.
    pub fn task(&self) -> Result<String, TrainError> {
        let task = self.table()?.get("run").and_then(|run| run.get("task")).cloned();
        match task {
            Some(Value::String(name)) => Ok(name),
            _ => Err(TrainError::Config(format!(
                "{}: run.task is missing; add `task = \"images\"` under [run]",
                self.path.display()
            ))),
        }
    }

    /// For a task: its paths are made absolute.
    pub(crate) fn parse_for<T: Task>(&self) -> Result<Config<T::Config>, TrainError> {
        self.parse_with(T::PATH_KEYS)
    }

    /// With the table of the task as `C`. Its values stay as the user wrote them, because which of
    /// them are paths is not known.
    pub fn parse<C: DeserializeOwned>(&self) -> Result<Config<C>, TrainError> {
        self.parse_with(&[])
    }

    fn parse_with<C: DeserializeOwned>(&self, path_keys: &[&str]) -> Result<Config<C>, TrainError> {
        // The file as it stands first, so that its errors have a line; then each `--set` by itself, to name the culprit.
        // A file may leave out what `--set` gives, so "missing" is only an error at the end.
        if let Err(error) = toml::from_str::<Config<C>>(&self.text)
            && ((self.sets.is_empty() && self.overrides.is_empty()) || !error.message().starts_with("missing field"))
        {
            return Err(TrainError::Config(self.explain(&error)));
        }
        let mut table = self.file_table()?;
        for set in &self.sets {
            apply(&mut table, set).map_err(TrainError::Config)?;
            if let Err(error) = Config::<C>::deserialize_table(&table)
                && !error.message().starts_with("missing field")
            {
                return Err(TrainError::Config(format!("--set {set}: {}", suggest(error.message()))));
            }
        }
        for (key, value) in &self.overrides {
            insert(&mut table, &format!("optim.{key}"), value.clone())
                .and_then(|()| match Config::<C>::deserialize_table(&table) {
                    Err(error) if !error.message().starts_with("missing field") => Err(suggest(error.message())),
                    _ => Ok(()),
                })
                .map_err(|reason| TrainError::Config(format!("--optimizer-overrides {key}={value}: {reason}")))?;
        }
        anchor_paths(&mut table, path_keys);
        let mut config = Config::<C>::deserialize_table(&table)
            .map_err(|error| TrainError::Config(format!("{}: {}", self.path.display(), suggest(error.message()))))?;
        let stem = self.path.file_stem().map_or_else(|| "run".into(), |stem| stem.to_string_lossy());
        let dir = config.run.dir.get_or_insert_with(|| Path::new("runs").join(&*stem));
        if dir.as_os_str().is_empty() {
            let advice = "name a directory, or leave it out";
            return Err(TrainError::Config(format!("run.dir is empty: {advice} (it is runs/{stem} then)")));
        }
        config.check().map_err(TrainError::Config)?;
        Ok(config)
    }

    /// The file with everything set, untyped.
    fn table(&self) -> Result<Table, TrainError> {
        let mut table = self.file_table()?;
        for set in &self.sets {
            apply(&mut table, set).map_err(TrainError::Config)?;
        }
        Ok(table)
    }

    fn file_table(&self) -> Result<Table, TrainError> {
        self.text.parse().map_err(|error| TrainError::Config(self.explain(&error)))
    }

    fn explain(&self, error: &toml::de::Error) -> String {
        let line = error.span().map_or(1, |span| 1 + self.text[..span.start].matches('\n').count());
        format!("{}:{line}: {}", self.path.display(), suggest(error.message()))
    }
}

impl<C: DeserializeOwned> Config<C> {
    /// As text once more, so that all of it is compiled for one kind of input only: for tables it would be as much again.
    fn deserialize_table(table: &Table) -> Result<Self, toml::de::Error> {
        toml::from_str(&table.to_string())
    }
}

/// Paths of the task made absolute: the resolved config is also read from other directories.
fn anchor_paths(table: &mut Table, path_keys: &[&str]) {
    let Some(Value::Table(task)) = table.get_mut("task") else { return };
    for key in path_keys {
        if let Some(Value::String(path)) = task.get_mut(*key)
            && let Ok(absolute) = std::path::absolute(&*path)
        {
            *path = absolute.display().to_string();
        }
    }
}

/// `a.b=c`: `c` is read as TOML, and as a plain string if it is none.
fn apply(table: &mut Table, set: &str) -> Result<(), String> {
    let (key, value) = set.split_once('=').ok_or_else(|| format!("--set {set}: say --set section.key=value"))?;
    let parsed = format!("value = {value}").parse::<Table>().ok().and_then(|mut parsed| parsed.remove("value"));
    let value = parsed.unwrap_or_else(|| Value::String(value.to_owned()));
    insert(table, key.trim(), value).map_err(|reason| format!("--set {}: {reason}", shortened(set)))
}

/// As much of a setting as a person reads.
fn shortened(set: &str) -> String {
    match set.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &set[..end]),
        None => set.to_owned(),
    }
}

/// No key of ours has as many. Tables are dropped and written by recursion, which far more parts would overflow.
const MOST_PARTS: usize = 16;

/// Sets the key at a path such as `optim.lr`.
fn insert(table: &mut Table, key: &str, value: Value) -> Result<(), String> {
    let mut path: Vec<&str> = key.split('.').collect();
    let last = path.pop().filter(|_| !path.is_empty() && path.iter().all(|part| !part.is_empty()));
    let last = last.ok_or("a key has a section, such as optim.lr")?;
    if path.len() >= MOST_PARTS {
        return Err(format!("a key has at most {MOST_PARTS} parts, such as the two of optim.lr"));
    }
    let mut at = table;
    for part in path {
        at = match at.entry(part).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(inner) => inner,
            _ => return Err(format!("`{part}` is a value, not a section")),
        };
    }
    at.insert(last.to_owned(), value);
    Ok(())
}

/// Turns serde's "unknown field `x`, expected one of `a`, `b`" into a sentence that names the nearest, and Rust's names of
/// types into words.
pub fn suggest(message: &str) -> String {
    let mut message = message.trim_end().replace("missing field", "missing key or section");
    for (rust, words) in [
        ("expected u64", "a whole number is due"),
        ("expected u32", "a whole number is due"),
        ("expected f64", "a number is due"),
        ("expected f32", "a number is due"),
    ] {
        message = message.replace(rust, words);
    }
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let kind = ["field", "variant"].into_iter().find(|kind| message.starts_with(&format!("unknown {kind} `")));
    let (Some(kind), [wrong, known @ ..]) = (kind, &quoted[..]) else {
        return message;
    };
    let noun = if kind == "field" { "key" } else { "value" };
    let nearest = known
        .iter()
        .map(|name| (strsim::normalized_damerau_levenshtein(wrong, name), name))
        .filter(|(likeness, _)| *likeness >= 0.4)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = nearest.map_or_else(String::new, |(_, name)| format!(" Did you mean `{name}`?"));
    format!("unknown {noun} `{wrong}`.{hint} Known here: {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, Serialize, Deserialize, PartialEq, Clone)]
    #[serde(deny_unknown_fields)]
    struct Toy {
        data: String,
        #[serde(default)]
        dropout: f32,
    }

    const TEXT: &str = "[run]\ntask = \"toy\"\nmax_updates = 3\n[task]\ndata = \"x\"\n[batch]\nglobal = 8\n\
                        [optim]\nname = \"sgd\"\nlr = 0.1\n";

    fn parse(text: &str, sets: &[&str]) -> Result<Config<Toy>, String> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        ConfigSource::from_text("toy.toml", text.to_owned(), &sets).parse().map_err(|error| error.to_string())
    }

    #[test]
    fn a_config_and_its_sets() {
        let config =
            parse(TEXT, &["optim.lr=0.5", "task.data=/a b", "batch.global=64 tokens", "comm.silence_s=5.0"]).unwrap();
        assert_eq!(config.optim.lr, Some(hetseq_optim::BaseRate::Constant(0.5)));
        assert_eq!(config.task.data, "/a b");
        assert_eq!(config.batch.global, hetseq_data::GlobalBatch::Tokens(64));
        assert_eq!(config.run.dir, Some(PathBuf::from("runs/toy")));
    }

    #[test]
    fn only_declared_keys_are_paths() {
        let source = ConfigSource::from_text("toy.toml", TEXT.to_owned(), &[]);
        assert_eq!(source.parse::<Toy>().unwrap().task.data, "x");
        let data = source.parse_with::<Toy>(&["data"]).unwrap().task.data;
        assert_eq!(Path::new(&data), std::path::absolute("x").unwrap());
    }

    #[test]
    fn a_wrong_key_names_file_line_and_nearest() {
        let error = parse(&TEXT.replace("lr =", "lrr ="), &[]).unwrap_err();
        assert!(error.starts_with("toy.toml:10: unknown key `lrr`. Did you mean `lr`?"), "{error}");
        let error = parse(&TEXT.replace("data =", "dta ="), &[]).unwrap_err();
        assert!(error.starts_with("toy.toml:5: unknown key `dta`. Did you mean `data`?"), "{error}");
        let error = parse(TEXT, &["optim.clip_nrom=1"]).unwrap_err();
        assert!(error.starts_with("--set optim.clip_nrom=1: unknown key `clip_nrom`. Did you mean `clip_norm`"));
        let error = parse(&TEXT.replace("sgd", "sdg"), &[]).unwrap_err();
        assert!(error.contains("toy.toml:9: unknown value `sdg`. Did you mean `sgd`?"), "{error}");
    }

    #[test]
    fn overrides_of_the_optimizer_come_last() {
        let source = ConfigSource::from_text("toy.toml", TEXT.to_owned(), &["optim.lr=0.5".to_owned()]);
        let parse = |text: &str| -> Result<Config<Toy>, String> {
            let overridden = source.clone().override_optimizer(text);
            overridden.and_then(|source| source.parse()).map_err(|error| error.to_string())
        };
        let config = parse("{'lr': [0.2, 0.1], 'weight_decay': 0.5}").unwrap();
        let rates = hetseq_optim::BaseRate::PerEpoch(vec![0.2, 0.1]);
        assert_eq!((config.optim.lr, config.optim.weight_decay), (Some(rates), 0.5));
        let error = parse("wieght_decay=0.1").unwrap_err();
        let told = "--optimizer-overrides wieght_decay=0.1: unknown key `wieght_decay`. Did you mean `weight_decay`?";
        assert!(error.starts_with(told), "{error}");
        let error = parse("lr=-1").unwrap_err();
        assert!(error.contains("optim.lr = -1 must be zero or more"), "{error}");
    }

    #[test]
    fn what_is_missing_may_come_from_set() {
        let without = TEXT.replace("data = \"x\"\n", "");
        assert!(parse(&without, &[]).unwrap_err().contains("missing key or section `data`"));
        assert_eq!(parse(&without, &["task.data=/y"]).unwrap().task.data, "/y");
    }

    #[test]
    fn broken_sets() {
        for bad in ["lr=1", "optim.lr", "optim.lr.x=1", ".lr=1"] {
            assert!(parse(TEXT, &[bad]).is_err(), "{bad}");
        }
        let deep = format!("task.{}=1", vec!["a"; 20_000].join("."));
        let error = parse(TEXT, &[&deep]).unwrap_err();
        assert!(error.len() < 400 && error.contains("at most 16 parts"), "{error}");
    }

    #[test]
    fn an_empty_run_directory_would_be_the_present_one() {
        for error in [
            parse(TEXT, &["run.dir="]).unwrap_err(),
            parse(&TEXT.replace("task = \"toy\"", "task = \"toy\"\ndir = ''"), &[]).unwrap_err(),
        ] {
            assert!(error.contains("run.dir is empty") && error.contains("runs/toy"), "{error}");
        }
    }
}
