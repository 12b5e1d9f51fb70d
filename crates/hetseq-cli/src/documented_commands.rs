//! Checks the commands in the documents: every `hetseq ...` line in a code block of a Markdown page,
//! and in the comments of a config, must be one that the command line accepts. If it names a config
//! of this repository, its `--set` keys must exist, too.

use std::path::{Path, PathBuf};

use clap::Parser;
use fs_err as fs;
use hetseq_train::{ConfigSource, Tasks};

use crate::args::{Command, Hetseq};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files below `dir` whose names end in one of `ends`.
fn files(dir: &Path, ends: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(files(&entry, ends));
        } else if ends.iter().any(|end| entry.to_string_lossy().ends_with(end)) {
            found.push(entry);
        }
    }
    found.sort();
    found
}

fn pages() -> Vec<PathBuf> {
    let root = root();
    let names = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "python/README.md"].map(|name| root.join(name));
    names.into_iter().filter(|path| path.exists()).chain(files(&root.join("docs"), &[".md"])).collect()
}

/// The lines in fenced code blocks for a shell (`sh`, `bash`), and those after a prompt in others.
/// Lines that end in a backslash are joined with the next.
fn shell_lines(page: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut block: Option<&str> = None;
    for line in page.lines() {
        let fence = line.trim_start().strip_prefix("```");
        match (block, fence) {
            (None, Some(language)) => block = Some(language.trim()),
            (Some(_), Some(_)) => block = None,
            (Some("sh" | "bash"), None) => lines.push(line),
            (Some(_), None) => lines.extend(line.trim_start().strip_prefix("$ ")),
            (None, None) => {}
        }
    }
    lines.join("\n").replace("\\\n", " ").lines().map(str::to_owned).collect()
}

/// The commands in the comments of a config: indented by three spaces.
fn commented_lines(config: &str) -> Vec<String> {
    let commented: Vec<&str> = config.lines().filter_map(|line| line.strip_prefix("#   ")).collect();
    commented.join("\n").replace("\\\n", " ").lines().map(str::to_owned).collect()
}

/// The arguments of each `hetseq` in a line of shell: after variables, `ssh` or `srun`, and in quotes.
fn commands(line: &str) -> Vec<Vec<String>> {
    // So that operators are words of their own. `2>&1` and quotes stay as they are.
    let line = line.replace("; ", " ; ").replace("$(", "$( ");
    let Some(words) = shlex::split(&line) else {
        // A quote without its end: no command that can be accepted.
        let is_command = line.contains("hetseq ");
        return if is_command { vec![vec!["hetseq".to_owned(), line]] } else { Vec::new() };
    };
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        if word == "hetseq" || word.ends_with("/hetseq") {
            let is_end = |word: &&String| [";", "&&", "||", "|", "&", ">", "<", "2>"].contains(&word.as_str());
            let args = words[at..].iter().take_while(|word| !is_end(word));
            let args: Vec<String> = args.map(|word| word.trim_end_matches(';').to_owned()).collect();
            let is_copied = words[..at].iter().any(|word| ["cp", "scp"].contains(&word.as_str()));
            if args.len() > 1 && !is_copied {
                found.push(args);
            }
        } else if word.contains("hetseq ") && word.contains(' ') {
            found.extend(commands(word));
        }
    }
    found
}

/// Why a command is wrong, if it is.
fn refused(tasks: &Tasks, args: &[String]) -> Option<String> {
    let parsed = match Hetseq::try_parse_from(args) {
        Ok(parsed) => parsed,
        Err(error) if error.exit_code() == 0 => return None,
        Err(error) => return Some(error.to_string()),
    };
    let Command::Train(train) = &parsed.command else { return None };
    let config = train.config_path().map(|path| root().join(path)).filter(|path| path.is_file())?;
    let source = ConfigSource::read(&config, train.sets()).ok()?;
    tasks.check(&source).err().map(|error| error.to_string())
}

fn assert_accepted(lines_of: impl Fn(&str) -> Vec<String>, files: &[PathBuf]) -> usize {
    let tasks = Tasks::builtin();
    let mut count = 0;
    let mut wrong = Vec::new();
    for file in files {
        for args in lines_of(&fs::read_to_string(file).unwrap()).iter().flat_map(|line| commands(line)) {
            count += 1;
            if let Some(reason) = refused(&tasks, &args) {
                wrong.push(format!("{}: {}\n{reason}", file.display(), args.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    count
}

#[test]
fn the_documents_show_commands_that_exist() {
    let count = assert_accepted(shell_lines, &pages());
    assert!(count > 60, "found only {count} commands");
}

#[test]
fn configs_show_commands_that_exist() {
    let configs = [root().join("configs"), root().join("examples")]
        .iter()
        .flat_map(|dir| files(dir, &[".toml"]))
        .collect::<Vec<_>>();
    let count = assert_accepted(commented_lines, &configs);
    assert!(count > 12, "found only {count} commands");
}

#[test]
fn commands_are_found_in_shell_lines() {
    let found = |line: &str| commands(line).into_iter().map(|args| args.join(" ")).collect::<Vec<_>>();
    assert_eq!(found("RANK=0 hetseq train run.toml > log 2>&1 &"), ["hetseq train run.toml"]);
    assert_eq!(found("ssh NODE 'X=1 ./hetseq eval x; tail log'"), ["./hetseq eval x"]);
    assert_eq!(found("srun hetseq train a.toml; code=$?   # hetseq comment"), ["hetseq train a.toml"]);
    assert_eq!(found("scp target/release/hetseq NODE:"), Vec::<String>::new());
    assert_eq!(found("hetseq devices && hetseq demo"), ["hetseq devices", "hetseq demo"]);
    let page = "```sh\nhetseq train \\\n  a.toml\n```\n```text\n$ hetseq demo\nhetseq output\n```\n";
    assert_eq!(shell_lines(page), ["hetseq train    a.toml", "hetseq demo"]);
    assert!(refused(&Tasks::builtin(), &["hetseq", "train", "x.toml", "--nonsense"].map(str::to_owned)).is_some());
    let unknown_key = ["hetseq", "train", "configs/mnist.toml", "--set", "optim.lrr=1"].map(str::to_owned);
    assert!(refused(&Tasks::builtin(), &unknown_key).unwrap().contains("optim.lr"));
}
