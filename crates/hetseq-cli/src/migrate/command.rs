//! From words to flags: finds the training command of a script, its launcher and its flags. Does
//! not know what the flags mean.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::flags::{self, Flag, Origin, Takes};
use super::words::{Script, ShellCommand};

/// The flags of a training command of the old program, and how it was launched.
#[derive(Debug, Default)]
pub(super) struct GivenFlags {
    /// Otherwise it is the original HetSeq.
    pub(super) is_fairseq: bool,
    pub(super) flags: Vec<GivenFlag>,
    /// Arguments without a flag: in fairseq the data.
    pub(super) positional: Vec<String>,
    pub(super) unknown: Vec<String>,
    /// Arguments of the launcher: `nproc_per_node`, `master_addr` and so on.
    pub(super) launcher: BTreeMap<String, String>,
    /// `srun`, `mpirun` or `mpiexec` in front of the command.
    pub(super) scheduler: Option<String>,
    pub(super) environment: BTreeMap<String, String>,
    /// Variables of the command that are not set.
    pub(super) unset: Vec<String>,
    /// Names of the flags that the conversion has looked up. Other flags have no effect, which the
    /// summary reports.
    used: RefCell<BTreeSet<String>>,
}

/// A known flag of the command.
#[derive(Debug)]
pub(super) struct GivenFlag {
    pub(super) flag: &'static Flag,
    /// The canonical name, with `-`.
    pub(super) name: String,
    pub(super) value: Option<String>,
    /// The flag and its value, for messages.
    pub(super) shown: String,
}

impl GivenFlags {
    /// The value of a flag. The last occurrence counts.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.get(name)?.value.as_deref()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn get(&self, name: &str) -> Option<&GivenFlag> {
        self.used.borrow_mut().insert(name.to_owned());
        self.flags.iter().rev().find(|flag| flag.name == name)
    }

    /// Whether the conversion has looked up this flag.
    pub(super) fn is_used(&self, flag: &GivenFlag) -> bool {
        self.used.borrow().contains(&flag.name)
    }
}

/// Programs that start ranks and take flags in front of the script.
const LAUNCHERS: [&str; 3] = ["torch.distributed.launch", "torch.distributed.run", "torchrun"];

/// Reads the first training command of a script.
pub(super) fn read(script: &Script) -> Result<GivenFlags, String> {
    let is_training = |command: &&ShellCommand| trainer_at(&command.words).is_some();
    let command = script.commands.iter().find(is_training).ok_or(
        "found no training command: pass the whole command line, such as \"python3 train.py --task mnist ...\" or \
         \"fairseq-train DATA --arch ...\"",
    )?;
    let start = trainer_at(&command.words).unwrap_or_default();
    let (before, after) = command.words.split_at(start);
    let is_program = |word: &&String| !word.starts_with('-');
    let after = if after.first().as_ref().is_some_and(is_program) { &after[1..] } else { after };
    let mut given = GivenFlags { environment: command.assigned.clone(), ..GivenFlags::default() };
    let mentions_fairseq =
        command.words[..command.words.len().min(start + 1)].iter().any(|word| word.contains("fairseq"));
    read_launcher(before, &mut given);
    read_flags(after, &mut given);
    let has_flag_of = |origin| given.flags.iter().any(|given| given.flag.origin == origin);
    given.is_fairseq = mentions_fairseq
        || (has_flag_of(Origin::Fairseq) || !given.positional.is_empty()) && !has_flag_of(Origin::Hetseq);
    let is_used = |name: &&String| command.words.iter().any(|word| word.contains(name.as_str()));
    given.unset = script.unset.iter().filter(is_used).cloned().collect();
    Ok(given)
}

/// The index of the training program among the words. A command may also consist of flags alone.
fn trainer_at(words: &[String]) -> Option<usize> {
    let is_trainer = |word: &String| {
        let name = word.trim_end_matches([')', '`']).rsplit(['/', ' ']).next().unwrap_or_default();
        ["train.py", "fairseq-train", "fairseq_cli.train", "hetseq.train", "fairseq-hydra-train"].contains(&name)
    };
    words.iter().position(is_trainer).or_else(|| words.first()?.starts_with("--").then_some(0))
}

fn read_launcher(words: &[String], given: &mut GivenFlags) {
    let program = |word: &String| word.rsplit('/').next().unwrap_or_default().to_owned();
    given.scheduler = words.iter().map(program).find(|word| ["srun", "mpirun", "mpiexec"].contains(&word.as_str()));
    let Some(at) = words.iter().position(|word| LAUNCHERS.contains(&program(word).as_str())) else { return };
    let mut words = words[at + 1..].iter();
    while let Some(word) = words.next() {
        let Some(name) = word.strip_prefix("--") else { continue };
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (name, words.as_slice().first().filter(|next| !next.starts_with("--")).cloned()),
        };
        given.launcher.insert(name.replace('-', "_"), value.unwrap_or_default());
    }
}

fn read_flags(words: &[String], given: &mut GivenFlags) {
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let Some(name) = flag_name(word) else {
            given.positional.push(word.clone());
            continue;
        };
        let (name, own_value) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (name, None),
        };
        let found = flags::find(name);
        let takes = found.map_or(Takes::Maybe, |flag| flag.takes);
        let next_word = || words.next_if(|next| takes.needs_value() || flag_name(next).is_none()).cloned();
        let value = if takes == Takes::Nothing { own_value } else { own_value.or_else(next_word) };
        let dashed = word.split('=').next().unwrap_or_default();
        let shown = value.as_ref().map_or_else(|| dashed.to_owned(), |value| format!("{dashed} {value}"));
        match found {
            Some(flag) => given.flags.push(GivenFlag { flag, name: flags::canonical(name), value, shown }),
            None => given.unknown.push(shown),
        }
    }
}

/// The name in `--name` or `-a`. A negative number is not a flag.
fn flag_name(word: &str) -> Option<&str> {
    let name = word.strip_prefix('-')?;
    let name = name.strip_prefix('-').unwrap_or(name);
    name.starts_with(|first: char| first.is_ascii_alphabetic()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::words;

    fn given(text: &str) -> GivenFlags {
        read(&words::parse(text, &|_| None).unwrap()).unwrap()
    }

    #[test]
    fn flags_with_and_without_values() {
        let given = given(
            "python3 train.py --task mnist --batch-size=64 --lr_scheduler x --cpu --min-lr -1 --fp16 --foo 3 --bar",
        );
        assert_eq!((given.value("task"), given.value("max-sentences")), (Some("mnist"), Some("64")));
        assert_eq!((given.value("lr-scheduler"), given.value("min-lr")), (Some("x"), Some("-1")));
        assert!(given.has("cpu") && given.value("cpu").is_none() && !given.has("bf16"));
        assert_eq!(given.unknown, ["--foo 3", "--bar"]);
    }

    #[test]
    fn the_last_occurrence_counts() {
        assert_eq!(given("train.py --num-workers 4 --lr 1 --lr 2").value("lr"), Some("2"));
    }

    #[test]
    fn the_program_is_recognized() {
        for (text, is_fairseq) in [
            ("python3 ~/hetseq/train.py --task bert --data x --config_file y", false),
            ("python3 train.py --task mnist --lr 1", false),
            ("fairseq-train data-bin/iwslt --arch transformer", true),
            ("python $(which fairseq-train) data-bin/x", true),
            ("python -m fairseq_cli.train data-bin/x", true),
            ("python train.py data-bin/x -a transformer", true),
            ("--arch transformer --max-tokens 4096", true),
            ("--task mnist", false),
        ] {
            assert_eq!(given(text).is_fairseq, is_fairseq, "{text}");
        }
        assert_eq!(given("fairseq-train data-bin/x --lr 1").positional, ["data-bin/x"]);
    }

    #[test]
    fn the_launcher_is_recognized() {
        let given = given(
            "cd /x && NCCL_DEBUG=INFO srun python -m torch.distributed.launch --nproc_per_node=8 --nnodes 2 --node_rank=0 \
             --master_addr=\"10.0.0.1\" $(which fairseq-train) data-bin/x",
        );
        let launcher = |key: &str| given.launcher.get(key).map(String::as_str);
        assert_eq!(
            (launcher("nproc_per_node"), launcher("nnodes"), launcher("master_addr")),
            (Some("8"), Some("2"), Some("10.0.0.1"))
        );
        assert_eq!(given.scheduler.as_deref(), Some("srun"));
        assert_eq!(
            (given.environment["NCCL_DEBUG"].as_str(), &given.positional[..]),
            ("INFO", &["data-bin/x".to_owned()][..])
        );
    }

    #[test]
    fn a_script_without_a_training_command_is_refused() {
        let script = words::parse("ls -l; echo hello", &|_| None).unwrap();
        assert!(read(&script).unwrap_err().contains("no training command"));
    }
}
