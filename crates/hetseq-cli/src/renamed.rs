//! Warnings about renamed flags. The old names are hidden aliases for one more release.

use crate::args::Command;
use crate::bench::BenchArgs;
use crate::output::eprint_line;
use crate::prep::args::PrepArgs;

const BENCH_COMM: [(&str, &str); 4] = [
    ("--own", "--shard-weight"),
    ("--route", "--algorithm"),
    ("--wire", "--wire-dtype"),
    ("--measure", "--measure-links"),
];
const SIMULATE: [(&str, &str); 1] = [("--line-gbit", "--link-gbit")];
const OUT: [(&str, &str); 1] = [("--output", "--out")];

/// Warns about each renamed flag among `words`, the arguments of the command line.
pub(crate) fn warn(command: &Command, words: impl Iterator<Item = String>) {
    let to = match command {
        Command::Export(args) => Some(&args.to),
        Command::Prep(PrepArgs::Digits(args)) => Some(&args.to),
        Command::Prep(PrepArgs::ImageFolder(args)) => Some(&args.to),
        _ => None,
    };
    if to.is_some_and(|to| to.is_old_form()) {
        print_warning("DIR as the last argument", "--out DIR");
    }
    let flags: &[(&str, &str)] = match command {
        Command::Bench(BenchArgs::Comm(_)) => &BENCH_COMM,
        Command::Simulate(_) => &SIMULATE,
        Command::Prep(_) | Command::Generate(_) | Command::Predict(_) | Command::Migrate(_) => &OUT,
        _ => return,
    };
    let mut words: Vec<String> = words.collect();
    if let Command::Migrate(args) = command {
        // The rest is the old command, which may have a flag of that name.
        words.truncate(words.len().saturating_sub(args.command.len()));
    }
    let names: Vec<&str> = words.iter().map(|word| word.split('=').next().unwrap_or_default()).collect();
    for (old, new) in flags.iter().filter(|(old, _)| names.contains(old)) {
        print_warning(old, new);
    }
}

fn print_warning(old: &str, new: &str) {
    eprint_line(&format!("warning: {old} is now {new}; the old name will be removed in the next release"));
}

/// Replaces a renamed flag of `bench comm` by its new name. Ranks are started with it, so that only
/// the parent warns.
pub(crate) fn new_name(word: &str) -> String {
    let (flag, value) = word.split_once('=').map_or((word, None), |(flag, value)| (flag, Some(value)));
    let new = BENCH_COMM.iter().find(|(old, _)| *old == flag).map_or(flag, |(_, new)| new);
    value.map_or_else(|| new.to_owned(), |value| format!("{new}={value}"))
}
