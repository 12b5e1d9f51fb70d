//! Text that users read and scripts depend on, as snapshots: a change of help, flags, config keys or
//! messages shows up in review. After an intended change, set `INSTA_UPDATE=always`, run the tests
//! `texts::`, and look at `git diff`.

use std::path::Path;

use fs_err as fs;

use crate::cluster::{Ended, Job, MNIST};
use crate::run_dir::RunDir;

const MIXED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/profiles/mixed-8.json");

const COMMANDS: [&str; 27] = [
    "",
    "train",
    "eval",
    "export",
    "generate",
    "predict",
    "average",
    "score",
    "migrate",
    "demo",
    "devices",
    "selftest",
    "config",
    "config reference",
    "plan",
    "simulate",
    "report",
    "bench",
    "bench step",
    "bench comm",
    "bench data",
    "prep",
    "prep digits",
    "prep image-folder",
    "prep bert",
    "prep translate",
    "prep verify",
];

pub(crate) fn assert_text(name: &str, text: &str) {
    let settings = {
        let mut settings = insta::Settings::clone_current();
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings
    };
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// Replaces what differs from run to run: this machine's paths and name, and every number.
pub(crate) fn masked(text: &str, dir: &Path) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut text = text.replace(&dir.display().to_string(), "DIR");
    if !host.trim().is_empty() {
        text = text.replace(host.trim(), "HOST");
    }
    let letters: Vec<char> = text.chars().collect();
    let mut masked = String::new();
    let mut at = 0;
    while at < letters.len() {
        // A digit inside a word, as in `beta1`, belongs to the word.
        let in_word = masked.ends_with(|before: char| before.is_ascii_alphabetic() || before == '_');
        if !letters[at].is_ascii_digit() || in_word {
            masked.push(letters[at]);
            at += 1;
            continue;
        }
        masked.push('#');
        while at < letters.len() && is_in_number(&letters, at) {
            at += 1;
        }
    }
    masked
}

/// A full stop or comma belongs to a number only if a digit follows.
fn is_in_number(letters: &[char], at: usize) -> bool {
    let next_is_digit = letters.get(at + 1).is_some_and(char::is_ascii_digit);
    letters[at].is_ascii_digit() || (matches!(letters[at], '.' | ',') && next_is_digit)
}

/// A masked report without what depends on speed: column widths, bars, units of time, advice.
fn masked_report(text: &str, dir: &Path) -> String {
    let is_advice = |line: &&str| line.starts_with("first:") || line.starts_with("then:");
    let lines = text.lines().filter(|line| !is_advice(line)).map(|line| {
        let line = masked(line.split(" [").next().unwrap_or_default().trim_end_matches('='), dir);
        let words: Vec<&str> = line.split_whitespace().map(|word| if word == "ms" { "s" } else { word }).collect();
        words.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn stderr_of(job: &Job, code: i32, dir: &Path) -> String {
    let ended: Ended = job.run().remove(0);
    assert_eq!(ended.code(), Some(code), "{ended:#?}");
    let lines: Vec<&str> = ended.stderr.lines().map(without_time).collect();
    masked(&(lines.join("\n") + "\n"), dir)
}

/// A log line without the time at its start, such as `2026-11-18T16:08:21Z `.
fn without_time(line: &str) -> &str {
    match line.split_once("Z ") {
        Some((time, rest)) if time.len() == 19 && time.as_bytes()[10] == b'T' => rest,
        _ => line,
    }
}

#[test]
fn help() {
    for command in COMMANDS {
        let text = Job::new(command.split_whitespace().chain(["--help"])).succeed();
        let name = if command.is_empty() { "hetseq" } else { command };
        assert_text(&format!("help {name}"), &text);
    }
}

/// The keys of every section, as the parser lists them when a key is unknown.
#[test]
fn config_keys() {
    let dir = RunDir::new();
    let fine_tuning = ["token-classification", "entity-linking", "sequence-classification"];
    let tasks = ["images", "bert-pretrain", "translation", "synthetic-bert"].into_iter().chain(fine_tuning);
    let sections =
        ["run", "batch", "optim", "optim.schedule", "valid", "checkpoint", "comm", "elastic", "emulate", "debug"];
    let mut text = String::new();
    let mut keys_of = |title: String, job: Job| {
        let refused = stderr_of(&job, 2, dir.path());
        text.push_str(&format!("[{title}]\n{}\n", refused.trim_end().replace(", ", "\n")));
    };
    for section in sections {
        let job = Job::mnist("train", dir.path()).set(&format!("{section}.zzzzzz"), 1);
        let job = if section == "optim.schedule" { job.set("optim.schedule.kind", "cosine") } else { job };
        keys_of(section.to_owned(), job);
    }
    for task in tasks {
        let config = dir.path().join("keys.toml");
        let body = format!(
            "[run]\ntask = \"{task}\"\nmax_updates = 1\n[task]\nzzzzzz = 1\n[batch]\nglobal = 8\n[optim]\nname = \"sgd\"\nlr = 0.1\n"
        );
        fs::write(&config, body).unwrap();
        keys_of(format!("task, {task}"), Job::new([Path::new("train"), &config]));
    }
    assert_text("config keys", &text);
}

#[test]
fn a_short_run() {
    let dir = RunDir::new();
    let job = Job::mnist("train", dir.path()).set("run.max_updates", 2).set("run.log_every", 1);
    let job = job.set("batch.split", "equal").set("valid.every", "never").set("checkpoint.every", "never");
    assert_text("messages of a run", &stderr_of(&job, 0, dir.path()));
    let resumed = job.set("run.max_updates", 3).set("optim.lr", 0.05);
    assert_text("messages of a resume", &stderr_of(&resumed, 0, dir.path()));
    let finished = stderr_of(&resumed, 0, dir.path());
    assert_text("messages of a finished run", &finished);
    let text = Job::new([Path::new("report"), dir.path()]).succeed();
    assert_text("report", &masked_report(&text, dir.path()));
}

#[test]
fn refusals() {
    let dir = RunDir::new();
    let train = || Job::mnist("train", dir.path());
    let cases = [
        ("unknown key", train().set("optim.lrr", 1)),
        ("wrong type", train().set("batch.global", "\"many\"")),
        ("missing config", Job::new(["train", "nowhere.toml"])),
        ("unknown task", train().set("run.task", "imges")),
        ("unknown device", train().set("run.devices", "tpu:0")),
        ("missing data", train().set("task.data", dir.path().join("nowhere").display())),
        ("no end", Job::new(["train", MNIST]).set("run.max_epochs", "\"x\"")),
        ("short secret", train().ranks(1).env_on(0, "HETSEQ_SECRET", "abc")),
        ("rank without world", train().env_on(0, "RANK", "1")),
        ("rank without address", train().env_on(0, "RANK", "1").env_on(0, "WORLD_SIZE", "2")),
        ("no checkpoint", Job::mnist("eval", dir.path())),
        ("no profile", Job::new(["plan", MNIST]).set("run.dir", dir.path().join("none").display())),
        ("no run to report", Job::new([Path::new("report"), &dir.path().join("none")])),
    ];
    let mut text = String::new();
    for (title, job) in cases {
        text.push_str(&format!("## {title}\n{}", stderr_of(&job, 2, dir.path())));
    }
    assert_text("refusals", &text);
}

#[test]
fn plan_and_simulate() {
    let plan = Job::new(["plan", MNIST, "--profile", MIXED]).set("batch.global", 4096).succeed();
    assert_text("plan", &plan);
    let simulate =
        Job::new(["simulate", "--profile", MIXED, "--global-batch", "4096", "--updates", "50", "--scale=1,2"]);
    assert_text("simulate", &simulate.succeed());
}
