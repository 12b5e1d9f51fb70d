//! From what was given to another program to a `run.toml`. Pure; a look at the data directory is an argument. Optimizer
//! and schedule are in `optim.rs`, what starts the ranks in `launch.rs`.

use std::path::{Component, Path, PathBuf};

use super::command::{Given, Typed};
use super::flags::{Becomes, Kind, Takes};
use super::{launch, numbers, optim};

/// A run of ours, and what to tell about it.
#[derive(Debug, Default)]
pub(super) struct Translation {
    pub(super) entries: Vec<Entry>,
    /// (what was typed or is missing, what to know): for a person to look at.
    pub(super) doubts: Vec<(String, String)>,
    /// (what was typed, why it is not needed).
    pub(super) unneeded: Vec<(String, String)>,
    pub(super) unknown: Vec<String>,
    /// The command for each rank, and what is to be said of them.
    pub(super) launch: launch::Launch,
}

/// One key of the new file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) section: &'static str,
    pub(super) key: String,
    /// As TOML.
    pub(super) value: String,
    /// Which flags it comes from, and how.
    pub(super) why: String,
}

/// What the outside knows.
pub(super) struct Outside<'a> {
    /// Tasks of this program.
    pub(super) tasks: &'a [&'a str],
    /// GPUs in all, if the user has said so to us.
    pub(super) world: Option<u64>,
    /// Whether a directory holds MNIST's idx files.
    pub(super) has_idx: &'a dyn Fn(&Path) -> bool,
}

const SECTIONS: [&str; 6] = ["run", "task", "batch", "optim", "valid", "checkpoint"];

impl Translation {
    /// `path` is `section.key`; a second time overwrites.
    pub(super) fn set(&mut self, path: &str, value: String, why: impl Into<String>) {
        let (section, key) = path.split_once('.').unwrap_or(("run", path));
        let section = SECTIONS.iter().find(|known| **known == section).copied().unwrap_or("run");
        self.entries.retain(|entry| !(entry.section == section && entry.key == key));
        self.entries.push(Entry { section, key: key.to_owned(), value, why: why.into() });
    }

    pub(super) fn set_text(&mut self, path: &str, value: &str, why: impl Into<String>) {
        self.set(path, toml::Value::String(value.to_owned()).to_string(), why);
    }

    pub(super) fn doubt(&mut self, what: impl Into<String>, know: impl Into<String>) {
        self.doubts.push((what.into(), know.into()));
    }

    /// Takes a key out again.
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
    pub(super) fn sections(&self) -> impl Iterator<Item = (&'static str, Vec<&Entry>)> {
        let of =
            |section: &'static str| self.entries.iter().filter(|entry| entry.section == section).collect::<Vec<_>>();
        SECTIONS.into_iter().map(move |section| (section, of(section))).filter(|(_, entries)| !entries.is_empty())
    }
}

pub(super) fn translate(given: &Given, outside: &Outside<'_>) -> Translation {
    let mut to = Translation { unknown: given.unknown.clone(), ..Translation::default() };
    for name in &given.unset {
        to.doubt(name.clone(), "is not set anywhere: write it out, or set it before the command");
    }
    task(given, outside, &mut to);
    for typed in &given.flags {
        one_flag(typed, &mut to);
    }
    if given.has("cpu") {
        to.set_text("run.devices", "cpu", "--cpu");
    }
    to.launch = launch::launch(given, outside.world);
    batch(given, &mut to);
    optim::optim(given, &mut to);
    validation(given, &mut to);
    checkpoints(given, &mut to);
    end(given, &mut to);
    for typed in given.flags.iter().filter(|typed| !given.is_seen(typed)) {
        let is_told = to.doubts.iter().any(|(told, _)| *told == typed.shown);
        if let Becomes::Joins(what) = typed.flag.becomes
            && !is_told
        {
            to.doubt(typed.shown.clone(), format!("has no effect beside the other flags; it is for {what}"));
        }
    }
    to
}

/// What needs no other flag to be understood.
fn one_flag(typed: &Typed, to: &mut Translation) {
    let is_missing = typed.value.is_none() && typed.flag.takes.needs_value();
    let (key, kind) = match typed.flag.becomes {
        Becomes::Joins(_) if is_missing => return to.doubt(typed.shown.clone(), "has no value"),
        Becomes::Joins(_) => {
            if let Some(problem) =
                typed.value.as_deref().filter(|_| typed.flag.takes == Takes::Count).and_then(no_count)
            {
                to.doubt(typed.shown.clone(), problem);
            }
            return;
        }
        Becomes::Unneeded(why) => return to.unneeded.push((typed.shown.clone(), why.to_owned())),
        Becomes::Look(why) => return to.doubt(typed.shown.clone(), why),
        Becomes::Key(key, kind) => (key, kind),
    };
    let Some(text) = typed.value.as_deref() else { return to.doubt(typed.shown.clone(), "has no value") };
    let why = typed.shown.clone();
    match kind {
        Kind::Text => to.set_text(key, text, why),
        Kind::Count | Kind::Limit => match numbers::whole(text) {
            Some(number) if number > 0 || kind == Kind::Count && number == 0 => to.set(key, number.to_string(), why),
            Some(0 | -1) if kind == Kind::Limit => {}
            Some(_) => to.doubt(why, BELOW_ZERO),
            None => to.doubt(why, format!("is not a whole number; set {key} by hand")),
        },
        Kind::Bound => match numbers::one(text) {
            Some(number) if number > 0.0 => to.set(key, numbers::float(number), why),
            Some(number) if number == 0.0 || number == -1.0 => {}
            Some(_) => to.doubt(why, BELOW_ZERO),
            None => to.doubt(why, format!("is not a number; set {key} by hand")),
        },
    }
}

const BELOW_ZERO: &str = "is below zero; it was left out";

/// Why a value is not a count, not even one that means none.
fn no_count(text: &str) -> Option<&'static str> {
    match numbers::whole(text) {
        None => Some("is not a whole number; it was left out"),
        Some(number) if number < -1 => Some(BELOW_ZERO),
        Some(_) => None,
    }
}

fn task(given: &Given, outside: &Outside<'_>, to: &mut Translation) {
    let default = if given.is_fairseq { "translation" } else { "bert" };
    let theirs = given.value("task").unwrap_or(default);
    let why = if given.has("task") { format!("--task {theirs}") } else { format!("--task {theirs}, their default") };
    let ours = match theirs {
        "mnist" => "images",
        "bert" => "bert-pretrain",
        other => other,
    };
    to.set_text("run.task", ours, why);
    if !outside.tasks.contains(&ours) {
        let known = outside.tasks.join(", ");
        to.doubt(
            format!("--task {theirs}"),
            format!("this program has no task {ours} (it knows {known}); examples/custom-task shows how to write one"),
        );
    }
    let data = given.value("data").or(given.loose.first().map(String::as_str));
    let Some(data) = data else {
        return to.doubt("no data", "was given: set task.data to a directory");
    };
    let typed = if given.has("data") { format!("--data {data}") } else { data.to_owned() };
    if ours != "images" {
        return to.set_text("task.data", data, typed);
    }
    // Theirs is where torchvision put it; ours are the idx files in there.
    let root = Path::new(data);
    let places = [root.to_owned(), root.join("MNIST/raw"), root.join("../raw"), root.join("raw")];
    match places.iter().find(|place| (outside.has_idx)(place)) {
        Some(place) => to.set_text("task.data", &tidy(place).display().to_string(), typed),
        None => {
            let place = tidy(&places[1]).display().to_string();
            to.set_text("task.data", &place, typed);
            to.doubt(
                "task.data",
                format!(
                    "there are no idx files in {place} yet; put MNIST's four there, or set task.data to where they are"
                ),
            );
        }
    }
}

/// `./a/b/../c` as `a/c`.
fn tidy(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if tidy.file_name().is_some() => _ = tidy.pop(),
            Component::CurDir => {}
            part => tidy.push(part),
        }
    }
    if tidy.as_os_str().is_empty() { PathBuf::from(".") } else { tidy }
}

/// Theirs is per GPU and step, ours is the whole update.
fn batch(given: &Given, to: &mut Translation) {
    let count = |name: &str| {
        given.value(name).and_then(numbers::whole).filter(|&number| number > 0).map(|number| number as u64)
    };
    let (sentences, tokens) = (count("max-sentences"), count("max-tokens"));
    let frequencies = given.value("update-freq").and_then(numbers::list).unwrap_or_else(|| vec![1.0]);
    let frequency = frequencies.first().map_or(1, |&first| (first as u64).max(1));
    if frequencies.iter().any(|other| *other != frequencies[0]) {
        to.doubt(
            "--update-freq",
            format!("changes from epoch to epoch; batch.global is one number: {frequency} is used"),
        );
    }
    let world = to.launch.world;
    let gpus = world.unwrap_or(1);
    let how = |per_gpu: u64, unit: &str| {
        let each = if gpus == 1 { "1 GPU".to_owned() } else { format!("{gpus} GPUs") };
        format!("{per_gpu} {unit} x {each} x update-freq {frequency}")
    };
    if let Some(tokens) = tokens {
        let global = tokens.saturating_mul(gpus).saturating_mul(frequency);
        to.set_text("batch.global", &format!("{global} tokens"), how(tokens, "tokens"));
        to.set("batch.max_tokens", tokens.to_string(), "--max-tokens: what fits one device at a time");
        if sentences.is_some() {
            to.doubt(
                "--max-sentences with --max-tokens",
                "their batch ended at whichever came first; here batch.global is in tokens and batch.micro caps the sentences",
            );
        }
    } else if let Some(sentences) = sentences {
        let global = sentences.saturating_mul(gpus).saturating_mul(frequency);
        to.set("batch.global", global.to_string(), how(sentences, "sentences"));
    } else {
        to.set("batch.global", "32".to_owned(), "a guess");
        to.doubt("no batch size", "was given (--max-sentences or --max-tokens): set batch.global");
    }
    if let Some(sentences) = sentences {
        to.set("batch.micro", sentences.to_string(), "--max-sentences: what fits one device at a time");
    }
    if world.is_none() {
        to.doubt(
            "the number of GPUs",
            "is not said, and theirs is all that are visible: multiply batch.global by it, or say it here with \
             --distributed-world-size N",
        );
    }
}

fn validation(given: &Given, to: &mut Translation) {
    let every = |name: &str| given.value(name).and_then(numbers::whole).filter(|&number| number > 0);
    if given.has("disable-validation") {
        to.set_text("valid.every", "never", "--disable-validation");
        if let Some(patience) = to.get("valid.patience").map(str::to_owned) {
            to.remove("valid.patience");
            to.doubt(format!("--patience {patience}"), "counts validations, and there are none; it was left out");
        }
    } else if let Some(updates) = every("validate-interval-updates").or(every("save-interval-updates")) {
        to.set_text("valid.every", &interval(updates, "update"), "every so many updates, as theirs");
    } else if let Some(epochs) = every("validate-interval") {
        to.set_text("valid.every", &interval(epochs, "epoch"), format!("--validate-interval {epochs}"));
    }
}

fn checkpoints(given: &Given, to: &mut Translation) {
    let count = |name: &str| given.value(name).and_then(numbers::whole).filter(|&number| number > 0);
    let updates = count("save-interval-updates");
    if given.has("no-save") {
        to.set_text("checkpoint.every", "never", "--no-save; the best, a stop and the end are saved all the same");
    } else if let Some(updates) = updates {
        to.set_text("checkpoint.every", &interval(updates, "update"), format!("--save-interval-updates {updates}"));
        if count("save-interval").is_none() || count("save-interval") == Some(1) {
            to.doubt(
                "--save-interval-updates",
                "saved at the ends of epochs too; here it is one or the other, and the end of the run",
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
        to.doubt(
            "old checkpoints",
            "are kept for ever by theirs; here the newest checkpoint.keep = 3 and the best are",
        );
    }
    if given.value("best-checkpoint-metric").is_some_and(|metric| !["loss", "accuracy"].contains(&metric)) {
        to.doubt(
            "--best-checkpoint-metric",
            "is taken as it stands; a task that does not measure it will say what it does measure",
        );
    }
}

/// A run of ours needs an end.
fn end(given: &Given, to: &mut Translation) {
    if to.get("run.max_epochs").is_some() || to.get("run.max_updates").is_some() {
        return;
    }
    match given.value("total-num-update").and_then(numbers::whole).filter(|&number| number > 0) {
        Some(total) => to.set("run.max_updates", total.to_string(), "--total-num-update: a run needs an end"),
        None => {
            to.set("run.max_epochs", "100".to_owned(), "a guess: a run needs an end");
            to.doubt("no end", "was given (--max-epoch or --max-update): set run.max_epochs or run.max_updates");
        }
    }
}

/// `3 epochs`.
fn interval(number: i64, unit: &str) -> String {
    format!("{number} {unit}{}", if number == 1 { "" } else { "s" })
}
