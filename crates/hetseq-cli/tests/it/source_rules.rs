//! Rules that keep the source readable, checked over all crates of the workspace: unique names,
//! short files, an opening comment in each file, and plain words.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fs_err as fs;

const MOST_LINES: usize = 450;
const MOST_ENTRIES: usize = 15;

/// Files that exist once per task, model or subcommand.
const SAME_THING: [&str; 11] = [
    "args.rs",
    "batch.rs",
    "config.rs",
    "data.rs",
    "encoder.rs",
    "mod.rs",
    "names.rs",
    "parts.rs",
    "settings.rs",
    "tests.rs",
    "train_vocabulary.rs",
];

/// Old-fashioned words. Written in halves, so that a search for them does not find this list.
const BANNED: [[&str; 2]; 11] = [
    ["who", "m"],
    ["who", "ever"],
    ["an", "ew"],
    ["sha", "ll"],
    ["me", "nd"],
    ["men", "ded"],
    ["there", "of"],
    ["no", "body"],
    ["some", "body"],
    ["every", "body"],
    ["a", "fresh"],
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All Rust files below `dir`.
fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// The source files of each crate.
fn sources() -> Vec<(String, Vec<PathBuf>)> {
    let mut all: Vec<_> = fs::read_dir(crates())
        .unwrap()
        .map(Result::unwrap)
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), rust_files(&entry.path().join("src"))))
        .collect();
    all.sort();
    assert!(all.len() >= 10, "{all:?}");
    all
}

/// The name of the type that a line declares for use outside its file.
fn declared(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = if rest.starts_with('(') { rest.split_once(')')?.1 } else { rest };
    let mut words = rest.split_whitespace();
    ["struct", "enum", "trait", "type"].contains(&words.next()?).then_some(())?;
    let name = words.next()?;
    Some(name.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or(name))
}

#[test]
fn no_two_types_share_a_name() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (_, files) in sources() {
        for file in files.iter().filter(|file| !file.ends_with("tests.rs")) {
            let text = fs::read_to_string(file).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            for name in code.lines().filter_map(declared) {
                places.entry(name.to_owned()).or_default().push(file.display().to_string());
            }
        }
    }
    assert!(places.len() > 300, "found only {} types", places.len());
    places.retain(|_, files| files.len() > 1);
    assert!(places.is_empty(), "{places:#?}");
}

#[test]
fn no_two_files_of_a_crate_share_a_name() {
    for (name, files) in sources() {
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
        for file in &files {
            *names.entry(file.file_name().unwrap().to_string_lossy().into_owned()).or_default() += 1;
        }
        names.retain(|file, count| *count > 1 && !SAME_THING.contains(&file.as_str()));
        assert!(names.is_empty(), "{name}: {names:?}");
    }
}

#[test]
fn files_are_short_and_open_with_a_comment() {
    let tests =
        rust_files(&crates()).into_iter().filter(|file| !file.components().any(|part| part.as_os_str() == "target"));
    for file in tests {
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().count();
        assert!(lines <= MOST_LINES, "{} has {lines} lines", file.display());
        assert!(text.starts_with("//!"), "{} does not open with //!", file.display());
    }
}

#[test]
fn the_training_crate_has_few_entries() {
    let entries = fs::read_dir(crates().join("hetseq-train/src")).unwrap().count();
    assert!(entries <= MOST_ENTRIES, "hetseq-train/src has {entries} entries");
}

#[test]
fn words_are_plain() {
    let root = crates().join("..");
    let mut files = rust_files(&crates());
    for dir in ["", "docs", "docs/tasks"] {
        let entries = fs::read_dir(root.join(dir)).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    let banned = BANNED.map(|halves| halves.concat());
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let mut words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            if words.any(|word| banned.contains(&word.to_lowercase())) {
                found.push(format!("{}:{}: {}", file.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Files and folders that ARCHITECTURE.md names, by the end of their path.
#[test]
fn the_architecture_names_files_that_exist() {
    let text = fs::read_to_string(crates().join("../ARCHITECTURE.md")).unwrap();
    let named: Vec<&str> = text
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.ends_with(".rs") || (name.ends_with('/') && !name.contains(' ')))
        .collect();
    assert!(named.len() > 30, "{named:?}");
    // `hetseq-kernels/host.rs` is `hetseq-kernels/src/host.rs`.
    let paths: Vec<String> = rust_files(&crates())
        .iter()
        .map(|file| file.display().to_string().replace("/src/", "/").replace("/tests/it/", "/"))
        .collect();
    for name in named {
        let found = paths.iter().any(|path| match name.strip_suffix('/') {
            Some(folder) => path.contains(&format!("/{folder}/")),
            None => path.ends_with(&format!("/{name}")),
        });
        assert!(found, "ARCHITECTURE.md names `{name}`, which does not exist");
    }
}

/// The list under "One update" starts each item with the calls that the loop makes, all of them in
/// its order.
#[test]
fn the_architecture_lists_the_loop_call_by_call() {
    let text = fs::read_to_string(crates().join("../ARCHITECTURE.md")).unwrap();
    let section = text.split("## One update").nth(1).unwrap().split("\n## ").next().unwrap();
    let is_item = |line: &&str| line.starts_with(|first: char| first.is_ascii_digit());
    let calls = |line: &str| -> Vec<String> {
        let names = line.split(": ").next().unwrap();
        names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let listed: Vec<String> = section.lines().filter(is_item).flat_map(calls).collect();
    assert!(listed.len() >= 7, "{listed:?}");

    let source = fs::read_to_string(crates().join("hetseq-train/src/trainer/mod.rs")).unwrap();
    let run = source.split("    fn run_updates(&mut self)").nth(1).unwrap().split("\n    }\n").next().unwrap();
    assert!(run.lines().count() < 60, "the loop has {} lines", run.lines().count());
    let body = run.split("while let").nth(1).unwrap().split("\n        }\n").next().unwrap();
    let called = |call: &str| call.split('(').next().unwrap_or_default().to_owned();
    // Not those of fields, such as `self.observer.start_update()`.
    let is_method = |name: &String| name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
    let calls: Vec<String> = body.split("self.").skip(1).map(called).filter(is_method).collect();
    assert_eq!(calls, listed);
}
