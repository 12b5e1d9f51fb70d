//! The command that resumes a run which was stopped, as the user can paste it into a shell. Printed
//! by `train` at its end.

use crate::args::TrainArgs;

/// The command line that resumes a run of `args`. `program` is the name by which this program was
/// called.
pub(crate) fn resume_command(program: &str, args: &TrainArgs) -> String {
    let quoted = |word: String| shlex::try_quote(&word).map_or_else(|_| word.clone(), std::borrow::Cow::into_owned);
    std::iter::once(program.to_owned()).chain(resume_words(args)).map(quoted).collect::<Vec<_>>().join(" ")
}

/// The words of `args` without what a resume must not repeat: where to resume from, and what to
/// reset.
pub(crate) fn resume_words(args: &TrainArgs) -> Vec<String> {
    let mut words = vec!["train".to_owned()];
    words.extend(args.path.as_ref().map(|path| path.display().to_string()));
    let mut add =
        |flag: &str, value: Option<String>| words.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
    for set in &args.sets {
        add("--set", Some(set.clone()));
    }
    add("--weight", args.weight.map(|weight| weight.to_string()));
    add("--optimizer-overrides", args.optimizer_overrides.clone());
    let rank = &args.rank_args;
    add("--distributed-init-method", rank.distributed_init_method.clone());
    add("--distributed-world-size", rank.distributed_world_size.map(|world| world.to_string()));
    add("--distributed-rank", rank.distributed_rank.map(|rank| rank.to_string()));
    words
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Command, Hetseq};

    fn command(line: &[&str]) -> String {
        let words = ["/opt/my tools/hetseq", "train"].iter().chain(line);
        match Hetseq::try_parse_from(words).unwrap().command {
            Command::Train(args) => resume_command("/opt/my tools/hetseq", &args),
            _ => unreachable!("the line begins with train"),
        }
    }

    #[test]
    fn the_command_is_quoted_and_neither_resets_nor_starts_over() {
        assert_eq!(command(&["configs/mnist.toml"]), "'/opt/my tools/hetseq' train configs/mnist.toml");
        let line = ["my run.toml", "--set", "batch.global=\"4096 tokens\"", "--resume", "never", "--reset", "data"];
        assert_eq!(command(&line), "'/opt/my tools/hetseq' train 'my run.toml' --set 'batch.global=\"4096 tokens\"'");
        let line = [
            "runs/it's",
            "--distributed-init-method",
            "tcp://a:7000",
            "--distributed-world-size=2",
            "--distributed-rank=1",
        ];
        assert_eq!(
            command(&line),
            "'/opt/my tools/hetseq' train \"runs/it's\" --distributed-init-method tcp://a:7000 --distributed-world-size 2 \
             --distributed-rank 1"
        );
    }
}
