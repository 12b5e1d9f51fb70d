//! What can be typed after `hetseq simulate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use hetseq_balance::Split;
use hetseq_balance::simulate::{Absence, Disturbance};

/// Predict how fast machines would train together, by playing a run event by event.
///
/// Prints samples per second, efficiency (against the sum of what each rank does by itself, with no network) and the time
/// of an update, split by measured speed and evenly. The machines are those of a profile: a run writes one when it starts
/// (RUN/profile.json), and docs/profiles/mixed-8.json is an example to try.
///
/// What is played is the planner that trains, with measured times instead of machines. Reading samples, validation and
/// checkpoints are not played.
#[derive(Debug, Args)]
#[command(after_help = "Examples, each after `hetseq simulate --profile p.json --global-batch 256`:
  --scale 1,2,4,8 --line-gbit 1,10    more machines, on two networks
  --disturb 2:50-100:3                rank 2 is three times as slow in updates 50 to 100
  --fail 1:80-120                     rank 1 is away in updates 80 to 119")]
pub(crate) struct SimulateArgs {
    /// What is known of the machines
    #[arg(long, value_name = "FILE")]
    pub(super) profile: PathBuf,
    /// Samples per update over all machines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(super) global_batch: u32,
    /// How many updates to play
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) updates: u32,
    /// Tokens of each sample (default: the longest that the profile has)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) tokens_per_sample: Option<u32>,
    /// Each device's time differs in each update by up to this part, up or down
    #[arg(long, value_name = "PART", default_value_t = 0.05)]
    pub(super) jitter: f64,
    /// Other noise for another seed
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Give every rank a line of so many Gbit/s; several are tried in turn (default: the profile's lines)
    #[arg(long, value_name = "GBIT", value_delimiter = ',', value_parser = gbit)]
    pub(super) line_gbit: Vec<f64>,
    /// Repeat the profile's ranks so many times; several are tried in turn
    #[arg(long, value_name = "TIMES", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) scale: Vec<u32>,
    /// So many ranks, the profile's in turn; several are tried in turn
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "scale")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) workers: Vec<u32>,
    /// Let the global batch grow with the number of ranks: --global-batch is what the profile's own ranks have together
    #[arg(long)]
    pub(super) grow_batch: bool,
    /// Only this split (default: both, side by side)
    #[arg(long, value_enum)]
    pub(super) split: Option<SplitArg>,
    /// Somebody uses a rank's machine for some updates, and everything takes FACTOR times as long there
    #[arg(long, value_name = "RANK:FROM-TO:FACTOR", value_parser = disturbance)]
    pub(super) disturb: Vec<Disturbance>,
    /// A rank leaves before update AT, and returns before update BACK, or never
    #[arg(long, value_name = "RANK:AT[-BACK]", value_parser = absence)]
    pub(super) fail: Vec<Absence>,
    /// How many seconds nobody trains when a rank leaves or returns
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub(super) pause: f64,
    /// Print one JSON array, an object per group and split
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SplitArg {
    /// So that all finish together
    Measured,
    /// The same for every device
    Equal,
}

impl From<SplitArg> for Split {
    fn from(split: SplitArg) -> Split {
        match split {
            SplitArg::Measured => Split::Measured,
            SplitArg::Equal => Split::Equal,
        }
    }
}

fn gbit(text: &str) -> Result<f64, String> {
    let gbit = text.parse().ok().filter(|gbit| (1e-6..=1e6).contains(gbit));
    gbit.ok_or_else(|| "say a speed in Gbit/s, such as 1 or 0.1".to_owned())
}

fn disturbance(text: &str) -> Result<Disturbance, String> {
    let parse = || {
        let [rank, updates, factor] = text.split(':').collect::<Vec<_>>().try_into().ok()?;
        let (from, to) = updates.split_once('-')?;
        let (rank, from_update, to_update) = (rank.parse().ok()?, from.parse().ok()?, to.parse().ok()?);
        Some(Disturbance { rank, device: None, from_update, to_update, factor: factor.parse().ok()? })
    };
    parse().ok_or_else(|| "say rank, first and last update, and factor, such as 2:50-100:3".to_owned())
}

fn absence(text: &str) -> Result<Absence, String> {
    let parse = || {
        let (rank, updates) = text.split_once(':')?;
        let (at, back) = updates.split_once('-').map_or((updates, None), |(at, back)| (at, Some(back)));
        let back_at_update = back.map(str::parse).transpose().ok()?;
        Some(Absence { rank: rank.parse().ok()?, at_update: at.parse().ok()?, back_at_update })
    };
    parse().ok_or_else(|| "say rank and update, such as 1:80, or 1:80-120 if it returns".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_is_typed_in_one_word() {
        let expected = Disturbance { rank: 2, device: None, from_update: 50, to_update: 100, factor: 3.5 };
        assert_eq!(disturbance("2:50-100:3.5"), Ok(expected));
        assert_eq!(absence("1:80"), Ok(Absence { rank: 1, at_update: 80, back_at_update: None }));
        assert_eq!(absence("1:80-120"), Ok(Absence { rank: 1, at_update: 80, back_at_update: Some(120) }));
        for bad in ["", "1", "1:2", "1:2-3", "1:2-3:x", "a:2-3:4", "1:2-3:4:5", "-1:2-3:4"] {
            assert!(disturbance(bad).is_err(), "{bad}");
        }
        for bad in ["", "1", "1:", "1:x", "1:2-", "1:2-x", ":2"] {
            assert!(absence(bad).is_err(), "{bad}");
        }
    }
}
