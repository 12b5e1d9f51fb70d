//! From the flags of the old program to the keys of a `run.toml`. Pure; access to the data
//! directory is an argument. Optimizer and schedule are in `optim.rs`, the commands that start the
//! ranks in `launch.rs`.

use std::path::{Component, Path, PathBuf};

use super::command::{GivenFlag, GivenFlags};
use super::flags::{Becomes, FlagKind, Takes};
use super::{launch, numbers, optim};

/// The converted run, and notes for the user.
#[derive(Debug, Default)]
pub(super) struct Converted {
    pub(super) entries: Vec<ConfigEntry>,
    /// (flag or missing setting, problem) that the user should check.
    pub(super) warnings: Vec<(String, String)>,
    /// (flag, reason) of flags without a counterpart that are not needed.
    pub(super) not_needed: Vec<(String, String)>,
    pub(super) unknown: Vec<String>,
    pub(super) launch: launch::Launch,
}

/// One key of the new file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigEntry {
    pub(super) section: &'static str,
    pub(super) key: String,
    /// As TOML.
    pub(super) value: String,
    /// The flags that it comes from, and how.
    pub(super) reason: String,
}

/// Inputs of a conversion other than the command line.
pub(super) struct ConvertContext<'a> {
    /// Tasks of this program.
    pub(super) tasks: &'a [&'a str],
    /// Number of GPUs over all machines, if the user has passed it.
    pub(super) world: Option<u64>,
    /// Whether a directory holds MNIST's idx files.
    pub(super) has_idx: &'a dyn Fn(&Path) -> bool,
}

const SECTIONS: [&str; 6] = ["run", "task", "batch", "optim", "valid", "checkpoint"];

impl Converted {
    /// Sets a key. `path` is `section.key`; an earlier value is overwritten.
    pub(super) fn set(&mut self, path: &str, value: String, reason: impl Into<String>) {
        let (section, key) = path.split_once('.').unwrap_or(("run", path));
        let section = SECTIONS.iter().find(|known| **known == section).copied().unwrap_or("run");
        self.entries.retain(|entry| !(entry.section == section && entry.key == key));
        self.entries.push(ConfigEntry { section, key: key.to_owned(), value, reason: reason.into() });
    }

    pub(super) fn set_text(&mut self, path: &str, value: &str, reason: impl Into<String>) {
        self.set(path, toml::Value::String(value.to_owned()).to_string(), reason);
    }

    /// Adds a warning. It is printed as `what` in one column and `problem` in the next.
    pub(super) fn warn(&mut self, what: impl Into<String>, problem: impl Into<String>) {
        self.warnings.push((what.into(), problem.into()));
    }

    fn remove(&mut self, path: &str) {
        self.entries.retain(|entry| format!("{}.{}", entry.section, entry.key) != path);
    }

    /// The value of a key that was set.
    pub(super) fn get(&self, path: &str) -> Option<&str> {
        let (section, key) = path.split_once('.')?;
        let entry = self.entries.iter().find(|entry| entry.section == section && entry.key == key);
        entry.map(|entry| entry.value.as_str())
    }

    /// The entries of each section, in the order of the file.
    pub(super) fn sections(&self) -> impl Iterator<Item = (&'static str, Vec<&ConfigEntry>)> {
        let of =
            |section: &'static str| self.entries.iter().filter(|entry| entry.section == section).collect::<Vec<_>>();
        SECTIONS.into_iter().map(move |section| (section, of(section))).filter(|(_, entries)| !entries.is_empty())
    }
}

pub(super) fn convert(given: &GivenFlags, context: &ConvertContext<'_>) -> Converted {
    let mut to = Converted { unknown: given.unknown.clone(), ..Converted::default() };
    for name in &given.unset {
        to.warn(name.clone(), "is not set: replace it by its value, or set it before the command");
    }
    task(given, context, &mut to);
    for flag in &given.flags {
        single_flag(flag, &mut to);
    }
    if given.has("cpu") {
        to.set_text("run.devices", "cpu", "--cpu");
    }
    to.launch = launch::launch(given, context.world);
    batch(given, &mut to);
    optim::optim(given, &mut to);
    validation(given, &mut to);
    checkpoints(given, &mut to);
    end(given, &mut to);
    for flag in given.flags.iter().filter(|flag| !given.is_used(flag)) {
        let has_warning = to.warnings.iter().any(|(what, _)| *what == flag.shown);
        if let Becomes::Combined(what) = flag.flag.becomes
            && !has_warning
        {
            to.warn(flag.shown.clone(), format!("has no effect with the other flags; it is for {what}"));
        }
    }
    to
}

/// Converts a flag that does not depend on others.
fn single_flag(given: &GivenFlag, to: &mut Converted) {
    let is_missing = given.value.is_none() && given.flag.takes.needs_value();
    let (key, kind) = match given.flag.becomes {
        Becomes::Combined(_) if is_missing => return to.warn(given.shown.clone(), "has no value"),
        Becomes::Combined(_) => {
            let count = given.value.as_deref().filter(|_| given.flag.takes == Takes::Count);
            if let Some(problem) = count.and_then(count_problem) {
                to.warn(given.shown.clone(), problem);
            }
            return;
        }
        Becomes::NotNeeded(reason) => return to.not_needed.push((given.shown.clone(), reason.to_owned())),
        Becomes::Manual(advice) => return to.warn(given.shown.clone(), advice),
        Becomes::Key(key, kind) => (key, kind),
    };
    let Some(text) = given.value.as_deref() else { return to.warn(given.shown.clone(), "has no value") };
    let shown = given.shown.clone();
    match kind {
        FlagKind::Text => to.set_text(key, text, shown),
        FlagKind::Count | FlagKind::Limit => match numbers::integer(text) {
            Some(number) if number > 0 || kind == FlagKind::Count && number == 0 => {
                to.set(key, number.to_string(), shown)
            }
            Some(0 | -1) if kind == FlagKind::Limit => {}
            Some(_) => to.warn(shown, NEGATIVE),
            None => to.warn(shown, format!("is not an integer; set {key} by hand")),
        },
        FlagKind::Bound => match numbers::one(text) {
            Some(number) if number > 0.0 => to.set(key, numbers::float(number), shown),
            Some(number) if number == 0.0 || number == -1.0 => {}
            Some(_) => to.warn(shown, NEGATIVE),
            None => to.warn(shown, format!("is not a number; set {key} by hand")),
        },
    }
}

const NEGATIVE: &str = "is negative and was ignored";

/// Why a value is not a count. 0 and -1 are valid: they mean none.
fn count_problem(text: &str) -> Option<&'static str> {
    match numbers::integer(text) {
        None => Some("is not an integer and was ignored"),
        Some(number) if number < -1 => Some(NEGATIVE),
        Some(_) => None,
    }
}

fn task(given: &GivenFlags, context: &ConvertContext<'_>, to: &mut Converted) {
    let default = if given.is_fairseq { "translation" } else { "bert" };
    let old = given.value("task").unwrap_or(default);
    let reason = if given.has("task") { format!("--task {old}") } else { format!("--task {old}, the old default") };
    let new = match old {
        "mnist" => "images",
        "bert" => "bert-pretrain",
        other => other,
    };
    to.set_text("run.task", new, reason);
    if !context.tasks.contains(&new) {
        let available = context.tasks.join(", ");
        to.warn(
            format!("--task {old}"),
            format!(
                "there is no task {new}; available tasks: {available}; examples/custom-task shows how to write one"
            ),
        );
    }
    let data = given.value("data").or(given.positional.first().map(String::as_str));
    let Some(data) = data else {
        return to.warn("no data", "was given: set task.data to a directory");
    };
    let shown = if given.has("data") { format!("--data {data}") } else { data.to_owned() };
    if new != "images" {
        return to.set_text("task.data", data, shown);
    }
    // The old flag names torchvision's directory; task.data is the directory of the idx files in
    // it.
    let root = Path::new(data);
    let candidates = [root.to_owned(), root.join("MNIST/raw"), root.join("../raw"), root.join("raw")];
    match candidates.iter().find(|dir| (context.has_idx)(dir)) {
        Some(dir) => to.set_text("task.data", &normalized(dir).display().to_string(), shown),
        None => {
            let dir = normalized(&candidates[1]).display().to_string();
            to.set_text("task.data", &dir, shown);
            to.warn(
                "task.data",
                format!("there are no idx files in {dir}; put MNIST's four there, or set task.data to their directory"),
            );
        }
    }
}

/// `./a/b/../c` as `a/c`.
fn normalized(path: &Path) -> PathBuf {
    let mut normalized = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if normalized.file_name().is_some() => _ = normalized.pop(),
            Component::CurDir => {}
            part => normalized.push(part),
        }
    }
    if normalized.as_os_str().is_empty() { PathBuf::from(".") } else { normalized }
}

/// The batch. In the old programs it is per GPU and step, here it is the whole update.
fn batch(given: &GivenFlags, to: &mut Converted) {
    let count = |name: &str| {
        given.value(name).and_then(numbers::integer).filter(|&number| number > 0).map(|number| number as u64)
    };
    let (sentences, tokens) = (count("max-sentences"), count("max-tokens"));
    let frequencies = given.value("update-freq").and_then(numbers::list).unwrap_or_else(|| vec![1.0]);
    let frequency = frequencies.first().map_or(1, |&first| (first as u64).max(1));
    if frequencies.iter().any(|other| *other != frequencies[0]) {
        to.warn("--update-freq", format!("changes by epoch, but batch.global is one number: {frequency} is used"));
    }
    let world = to.launch.world;
    let gpus = world.unwrap_or(1);
    let product = |per_gpu: u64, unit: &str| {
        let gpus = if gpus == 1 { "1 GPU".to_owned() } else { format!("{gpus} GPUs") };
        format!("{per_gpu} {unit} x {gpus} x update-freq {frequency}")
    };
    if let Some(tokens) = tokens {
        let global = tokens.saturating_mul(gpus).saturating_mul(frequency);
        to.set_text("batch.global", &format!("{global} tokens"), product(tokens, "tokens"));
        to.set("batch.max_tokens", tokens.to_string(), "--max-tokens: what fits one device at a time");
        if sentences.is_some() {
            to.warn(
                "--max-sentences with --max-tokens",
                "the old batch ended at the first limit; here batch.global is in tokens and batch.micro limits the sentences",
            );
        }
    } else if let Some(sentences) = sentences {
        let global = sentences.saturating_mul(gpus).saturating_mul(frequency);
        to.set("batch.global", global.to_string(), product(sentences, "sentences"));
    } else {
        to.set("batch.global", "32".to_owned(), "a guess");
        to.warn("no batch size", "was given (--max-sentences or --max-tokens): set batch.global");
    }
    if let Some(sentences) = sentences {
        to.set("batch.micro", sentences.to_string(), "--max-sentences: what fits one device at a time");
    }
    if world.is_none() {
        to.warn(
            "number of GPUs",
            "is not given, and the old program uses all visible ones: pass it with --world-size N, or multiply batch.global \
             by it",
        );
    }
}

fn validation(given: &GivenFlags, to: &mut Converted) {
    let every = |name: &str| given.value(name).and_then(numbers::integer).filter(|&number| number > 0);
    if given.has("disable-validation") {
        to.set_text("valid.every", "never", "--disable-validation");
        if let Some(patience) = to.get("valid.patience").map(str::to_owned) {
            to.remove("valid.patience");
            to.warn(format!("--patience {patience}"), "was ignored: it counts validations, and there are none");
        }
    } else if let Some(updates) = every("validate-interval-updates").or(every("save-interval-updates")) {
        to.set_text(
            "valid.every",
            &interval(updates, "update"),
            "--validate-interval-updates, else --save-interval-updates",
        );
    } else if let Some(epochs) = every("validate-interval") {
        to.set_text("valid.every", &interval(epochs, "epoch"), format!("--validate-interval {epochs}"));
    }
}

fn checkpoints(given: &GivenFlags, to: &mut Converted) {
    let count = |name: &str| given.value(name).and_then(numbers::integer).filter(|&number| number > 0);
    let updates = count("save-interval-updates");
    if given.has("no-save") {
        to.set_text("checkpoint.every", "never", "--no-save; the best, a stop and the end are still saved");
    } else if let Some(updates) = updates {
        to.set_text("checkpoint.every", &interval(updates, "update"), format!("--save-interval-updates {updates}"));
        if count("save-interval").is_none() || count("save-interval") == Some(1) {
            to.warn(
                "--save-interval-updates",
                "also saved after every epoch; here checkpoint.every is one interval, and the end of the run is saved",
            );
        }
    } else if let Some(epochs) = count("save-interval") {
        to.set_text("checkpoint.every", &interval(epochs, "epoch"), format!("--save-interval {epochs}"));
    }
    let keep = if updates.is_some() { "keep-interval-updates" } else { "keep-last-epochs" };
    if let Some(number) = count(keep) {
        to.set("checkpoint.keep", number.to_string(), format!("--{keep} {number}"));
    } else if given.has("no-epoch-checkpoints") {
        to.set("checkpoint.keep", "1".to_owned(), "--no-epoch-checkpoints");
    } else if !given.has("no-save") {
        to.warn(
            "old checkpoints",
            "are never removed by the old program; here the newest checkpoint.keep = 3 and the best are kept",
        );
    }
    if given.value("best-checkpoint-metric").is_some_and(|metric| !["loss", "accuracy"].contains(&metric)) {
        to.warn(
            "--best-checkpoint-metric",
            "is copied unchanged; if the task does not have this metric, training lists those it has",
        );
    }
}

/// The end of the run, which every run needs.
fn end(given: &GivenFlags, to: &mut Converted) {
    if to.get("run.max_epochs").is_some() || to.get("run.max_updates").is_some() {
        return;
    }
    match given.value("total-num-update").and_then(numbers::integer).filter(|&number| number > 0) {
        Some(total) => to.set("run.max_updates", total.to_string(), "--total-num-update: a run needs an end"),
        None => {
            to.set("run.max_epochs", "100".to_owned(), "a guess: a run needs an end");
            to.warn("no end", "was given (--max-epoch or --max-update): set run.max_epochs or run.max_updates");
        }
    }
}

/// `3 epochs`.
fn interval(number: i64, unit: &str) -> String {
    format!("{number} {unit}{}", if number == 1 { "" } else { "s" })
}
