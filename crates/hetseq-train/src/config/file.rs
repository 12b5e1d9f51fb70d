//! Reads `run.toml` and `--set` into a typed [`Config`]. An error about a wrong key names file,
//! line and the most similar valid key.

use std::path::{Path, PathBuf};

use hetseq_comm::TransportKind;
use hetseq_fs::expand_home;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::missing_keys::missing_keys;
use super::names::suggest;
use super::nearby_files::no_config;
use super::{Config, overrides, renamed, syntax};
use crate::error::TrainError;
use crate::task::Task;

/// The text of a config file and the values set on the command line, not yet typed.
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
        let text = fs_err::read_to_string(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => TrainError::Config(no_config(path)),
            std::io::ErrorKind::InvalidData => {
                TrainError::Config(format!("{} is not text in UTF-8: save it in that encoding", path.display()))
            }
            _ => TrainError::Config(error.to_string()),
        })?;
        Ok(ConfigSource { path: path.to_owned(), text, sets: sets.to_vec(), overrides: Vec::new() })
    }

    pub fn from_text(name: &str, text: String, sets: &[String]) -> Self {
        ConfigSource { path: PathBuf::from(name), text, sets: sets.to_vec(), overrides: Vec::new() }
    }

    /// Adds the settings of `--optimizer-overrides`: `lr=1e-4,weight_decay=0.1`, or a Python
    /// dictionary.
    pub fn override_optimizer(mut self, text: &str) -> Result<Self, TrainError> {
        self.overrides = overrides::parse(text).map_err(TrainError::Config)?;
        Ok(self)
    }

    /// Whether [`ConfigSource::override_optimizer`] added any setting.
    pub fn has_overrides(&self) -> bool {
        !self.overrides.is_empty()
    }

    /// The task's name, needed before its table can be typed.
    pub fn task(&self) -> Result<String, TrainError> {
        let table = self.table()?;
        let task = table.get("run").and_then(|run| run.get("task"));
        match task {
            Some(Value::String(name)) => Ok(renamed::task(name).to_owned()),
            Some(other) => {
                Err(self.refused(&format!("run.task = {other}: write the name of a task, such as \"images\"")))
            }
            None => {
                let missing = missing_keys::<Table>(&table);
                Err(self.refused(&missing.unwrap_or_else(|| "run.task is missing".to_owned())))
            }
        }
    }

    /// The transport of the ranks, before the rest of the config is known to be valid.
    pub fn transport(&self) -> Result<TransportKind, TrainError> {
        let table = self.table()?;
        let transport = table.get("comm").and_then(|comm| comm.get("transport")).cloned();
        // An invalid value is reported with its line when the whole config is parsed.
        Ok(transport.and_then(|transport| transport.try_into().ok()).unwrap_or_default())
    }

    /// The config of a task, with its paths made absolute.
    pub(crate) fn parse_for<T: Task>(&self) -> Result<Config<T::Config>, TrainError> {
        self.parse_with(T::PATH_KEYS)
    }

    /// The config with the task's table as `C`. Paths in it stay as written, since it is not known
    /// which values are paths.
    pub fn parse<C: DeserializeOwned>(&self) -> Result<Config<C>, TrainError> {
        self.parse_with(&[])
    }

    pub(crate) fn parse_with<C: DeserializeOwned>(&self, path_keys: &[&str]) -> Result<Config<C>, TrainError> {
        // The file alone first, so that its errors have a line; then each `--set` separately, so
        // that errors name it. `--set` may give a key that the file lacks, so a missing key is an
        // error only at the end.
        if let Err(error) = typed::<C>(&self.text)
            && error.missing.is_none()
        {
            return Err(TrainError::Config(self.explain(&error)));
        }
        let mut table = self.file_table()?;
        for set in &self.sets {
            apply(&mut table, set).map_err(TrainError::Config)?;
            if let Err(error) = typed::<C>(&table.to_string())
                && error.missing.is_none()
            {
                let key = set.split('=').next().unwrap_or_default().trim();
                let reason = error.message.strip_prefix(&format!("{key}: ")).unwrap_or(&error.message);
                return Err(TrainError::Config(format!("--set {set}: {reason}")));
            }
        }
        for (key, value) in &self.overrides {
            insert(&mut table, &format!("optim.{key}"), value.clone())
                .and_then(|()| match typed::<C>(&table.to_string()) {
                    Err(error) if error.missing.is_none() => Err(error.message),
                    _ => Ok(()),
                })
                .map_err(|reason| TrainError::Config(format!("--optimizer-overrides {key}={value}: {reason}")))?;
        }
        for (old, new) in renamed::rename(&mut table) {
            tracing::warn!("{old} is now {new}; the old name will be removed in the next release");
        }
        anchor_paths(&mut table, path_keys);
        if let Some(missing) = missing_keys::<C>(&table) {
            return Err(self.refused(&missing));
        }
        let mut config: Config<C> = typed(&table.to_string()).map_err(|error| self.refused(&error.message))?;
        let stem = self.path.file_stem().map_or_else(|| "run".into(), |stem| stem.to_string_lossy());
        let dir = config.run.dir.get_or_insert_with(|| Path::new("runs").join(&*stem));
        if dir.as_os_str().is_empty() {
            let advice = "name a directory, or leave the key out for the default";
            return Err(TrainError::Config(format!("run.dir is empty: {advice}, runs/{stem}")));
        }
        config.check().map_err(TrainError::Config)?;
        Ok(config)
    }

    /// The file with all `--set` values applied, untyped.
    fn table(&self) -> Result<Table, TrainError> {
        let mut table = self.file_table()?;
        for set in &self.sets {
            apply(&mut table, set).map_err(TrainError::Config)?;
        }
        Ok(table)
    }

    fn file_table(&self) -> Result<Table, TrainError> {
        self.text.parse().map_err(|error| TrainError::Config(self.explain(&KeyError::syntax(&self.text, &error))))
    }

    /// The error about the file as a whole.
    fn refused(&self, reason: &str) -> TrainError {
        TrainError::Config(format!("{}: {reason}", self.path.display()))
    }

    fn explain(&self, error: &KeyError) -> String {
        format!("{}:{}: {}", self.path.display(), error.line, error.message)
    }
}

/// An error about a key or the syntax of a config.
pub(super) struct KeyError {
    /// Names the key with its path, and the most similar valid one.
    message: String,
    line: usize,
    /// Where it is, such as `optim.lr`.
    pub(super) path: String,
    /// The key that is required and not given, with its section, if that is the error.
    pub(super) missing: Option<String>,
}

impl KeyError {
    fn syntax(text: &str, error: &toml::de::Error) -> Self {
        let line = line_of(text, error);
        let message = syntax::explain(text, line, error.message());
        KeyError { message, line, path: String::new(), missing: None }
    }
}

fn line_of(text: &str, error: &toml::de::Error) -> usize {
    error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count())
}

pub(super) fn typed<C: DeserializeOwned>(text: &str) -> Result<Config<C>, KeyError> {
    let deserializer = toml::Deserializer::parse(text).map_err(|error| KeyError::syntax(text, &error))?;
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let path = error.path().to_string();
        let raw = error.inner().message();
        let field = raw.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
        let missing = field.map(|field| if path == "." { field.to_owned() } else { format!("{path}.{field}") });
        KeyError { message: suggest(&path, raw), line: line_of(text, error.inner()), path, missing }
    })
}

/// Replaces `~` in all paths, and makes the task's paths absolute: the resolved config is also read
/// from other directories.
fn anchor_paths(table: &mut Table, path_keys: &[&str]) {
    if let Some(Value::Table(run)) = table.get_mut("run") {
        for key in ["dir", "python"] {
            if let Some(Value::String(path)) = run.get_mut(key) {
                *path = expand_home(path);
            }
        }
    }
    let Some(Value::Table(task)) = table.get_mut("task") else { return };
    for key in path_keys {
        if let Some(Value::String(path)) = task.get_mut(*key)
            && let Ok(absolute) = std::path::absolute(expand_home(path))
        {
            *path = absolute.display().to_string();
        }
    }
}

/// Applies `a.b=c`. `c` is parsed as TOML; if that fails, it is a plain string.
fn apply(table: &mut Table, set: &str) -> Result<(), String> {
    let (key, value) = set.split_once('=').ok_or_else(|| format!("--set {set}: use --set section.key=value"))?;
    let parsed = format!("value = {value}").parse::<Table>().ok().and_then(|mut parsed| parsed.remove("value"));
    let value = parsed.unwrap_or_else(|| Value::String(value.to_owned()));
    insert(table, key.trim(), value).map_err(|reason| format!("--set {}: {reason}", shortened(set)))
}

/// A setting, shortened for messages.
fn shortened(set: &str) -> String {
    match set.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &set[..end]),
        None => set.to_owned(),
    }
}

/// More parts than any valid key has. Tables are dropped and written recursively, and far more
/// parts would overflow the stack.
const MAX_PARTS: usize = 16;

/// Sets the key at a path such as `optim.lr`.
fn insert(table: &mut Table, key: &str, value: Value) -> Result<(), String> {
    let mut path: Vec<&str> = key.split('.').collect();
    let last = path.pop().filter(|_| !path.is_empty() && path.iter().all(|part| !part.is_empty()));
    let last = last.ok_or("a key needs a section, such as optim.lr")?;
    if path.len() >= MAX_PARTS {
        return Err(format!("a key has at most {MAX_PARTS} parts, such as the two of optim.lr"));
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
    fn set_changes_values_of_the_file() {
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
    fn an_error_names_file_line_and_the_nearest_key() {
        let error = parse(&TEXT.replace("lr =", "lrr ="), &[]).unwrap_err();
        assert!(error.starts_with("toy.toml:10: unknown key `lrr`. Did you mean `lr`?"), "{error}");
        let error = parse(&TEXT.replace("data =", "dta ="), &[]).unwrap_err();
        assert!(error.starts_with("toy.toml:5: unknown key `dta`. Did you mean `data`?"), "{error}");
        let error = parse(TEXT, &["optim.clip_nrom=1"]).unwrap_err();
        assert!(error.starts_with("--set optim.clip_nrom=1: unknown key `clip_nrom`. Did you mean `clip_norm`"));
        let error = parse(&TEXT.replace("sgd", "sdg"), &[]).unwrap_err();
        assert!(error.contains("toy.toml:9: optim.name: unknown value `sdg`. Did you mean `sgd`?"), "{error}");
    }

    #[test]
    fn a_text_without_quotes_is_reported_as_such() {
        let error = parse(&TEXT.replace("task = \"toy\"", "task = images"), &[]).unwrap_err();
        assert_eq!(error, "toy.toml:2: `task = images`: a text needs quotes. Write: task = \"images\"");
    }

    #[test]
    fn a_tilde_in_a_path_is_the_home_directory() {
        let source =
            ConfigSource::from_text("toy.toml", TEXT.to_owned(), &["task.data=~/x".to_owned(), "run.dir=~".to_owned()]);
        let config = source.parse_with::<Toy>(&["data"]).unwrap();
        let home = std::env::var("HOME").unwrap();
        assert_eq!((config.task.data, config.run.dir), (format!("{home}/x"), Some(PathBuf::from(home))));
    }

    #[test]
    fn optimizer_overrides_are_applied_last() {
        let source = ConfigSource::from_text("toy.toml", TEXT.to_owned(), &["optim.lr=0.5".to_owned()]);
        let parse = |text: &str| -> Result<Config<Toy>, String> {
            let overridden = source.clone().override_optimizer(text);
            overridden.and_then(|source| source.parse()).map_err(|error| error.to_string())
        };
        let config = parse("{'lr': [0.2, 0.1], 'weight_decay': 0.5}").unwrap();
        let rates = hetseq_optim::BaseRate::PerEpoch(vec![0.2, 0.1]);
        assert_eq!((config.optim.lr, config.optim.weight_decay), (Some(rates), 0.5));
        let error = parse("wieght_decay=0.1").unwrap_err();
        let expected =
            "--optimizer-overrides wieght_decay=0.1: unknown key `wieght_decay`. Did you mean `weight_decay`?";
        assert!(error.starts_with(expected), "{error}");
        let error = parse("lr=-1").unwrap_err();
        assert!(error.contains("optim.lr = -1 must be zero or more"), "{error}");
    }

    #[test]
    fn set_can_supply_missing_keys() {
        let without = TEXT.replace("data = \"x\"\n", "");
        assert!(parse(&without, &[]).unwrap_err().starts_with("toy.toml: task.data is missing. Add it"));
        assert_eq!(parse(&without, &["task.data=/y"]).unwrap().task.data, "/y");
    }

    #[test]
    fn invalid_sets_are_rejected() {
        for bad in ["lr=1", "optim.lr", "optim.lr.x=1", ".lr=1"] {
            assert!(parse(TEXT, &[bad]).is_err(), "{bad}");
        }
        let deep = format!("task.{}=1", vec!["a"; 20_000].join("."));
        let error = parse(TEXT, &[&deep]).unwrap_err();
        assert!(error.len() < 400 && error.contains("at most 16 parts"), "{error}");
    }

    #[test]
    fn an_empty_run_directory_is_rejected() {
        for error in [
            parse(TEXT, &["run.dir="]).unwrap_err(),
            parse(&TEXT.replace("task = \"toy\"", "task = \"toy\"\ndir = ''"), &[]).unwrap_err(),
        ] {
            assert!(error.contains("run.dir is empty") && error.contains("runs/toy"), "{error}");
        }
    }
}
