//! Warnings about renamed flags. The old names are hidden aliases for one more release.

use crate::args::Command;
use crate::bench::BenchArgs;
use crate::output::eprint_line;

const BENCH_COMM: [(&str, &str); 4] = [
    ("--own", "--shard-weight"),
    ("--route", "--algorithm"),
    ("--wire", "--wire-dtype"),
    ("--measure", "--measure-links"),
];
const SIMULATE: [(&str, &str); 1] = [("--line-gbit", "--link-gbit")];

/// Warns about each renamed flag among `words`, the arguments of the command line.
pub(crate) fn warn(command: &Command, words: impl Iterator<Item = String>) {
    let flags: &[(&str, &str)] = match command {
        Command::Bench(BenchArgs::Comm(_)) => &BENCH_COMM,
        Command::Simulate(_) => &SIMULATE,
        _ => return,
    };
    let names: Vec<String> = words.map(|word| word.split('=').next().unwrap_or_default().to_owned()).collect();
    for (old, new) in flags.iter().filter(|(old, _)| names.iter().any(|name| name == old)) {
        eprint_line(&format!("warning: {old} is now {new}; the old name will be removed in the next release"));
    }
}

/// Replaces a renamed flag of `bench comm` by its new name. Ranks are started with it, so that only
/// the parent warns.
pub(crate) fn new_name(word: &str) -> String {
    let (flag, value) = word.split_once('=').map_or((word, None), |(flag, value)| (flag, Some(value)));
    let new = BENCH_COMM.iter().find(|(old, _)| *old == flag).map_or(flag, |(_, new)| new);
    value.map_or_else(|| new.to_owned(), |value| format!("{new}={value}"))
}
