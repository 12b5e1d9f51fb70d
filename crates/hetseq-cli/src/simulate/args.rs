//! Command-line arguments of `hetseq simulate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use hetseq_balance::SplitMode;
use hetseq_balance::simulate::{Absence, Disturbance};

/// Predict the training speed of a group of machines by simulation
///
/// Prints samples per second, efficiency (relative to the sum of the ranks' separate speeds without
/// a network) and the time of an update, both split by measured speed and evenly. The machines are
/// those of a profile: a run writes one when it starts (RUN/profile.json), and
/// docs/profiles/mixed-8.json is an example.
///
/// The simulation uses the same planner as training, with times from the profile. It does not
/// include reading samples, validation and checkpoints.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples, each after `hetseq simulate --profile docs/profiles/mixed-8.json --global-batch 256`:
  --scale 1,2,4,8 --link-gbit 1,10    more machines, on two networks
  --disturb 2:50-100:3                rank 2 is three times as slow in updates 50 to 100
  --fail 1:80-120                     rank 1 is away in updates 80 to 119"
)]
pub(crate) struct SimulateArgs {
    /// Profile of the machines
    #[arg(long, value_name = "FILE")]
    pub(super) profile: PathBuf,
    /// Samples per update over all machines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(super) global_batch: u32,
    /// Number of updates to simulate
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) updates: u32,
    /// Tokens per sample (default: the longest in the profile)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) tokens_per_sample: Option<u32>,
    /// Random variation of device times, as a fraction: 0.05 is up to 5 % up or down in each update
    #[arg(long, value_name = "PART", default_value_t = 0.05)]
    pub(super) jitter: f64,
    /// Seed of the variation
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Link speed of every rank in Gbit/s; several values are simulated in turn (default: as in the
    /// profile)
    #[arg(long, alias = "line-gbit", value_name = "GBIT", value_delimiter = ',', value_parser = gbit)]
    pub(super) link_gbit: Vec<f64>,
    /// Repeat the ranks of the profile this many times; several values are simulated in turn
    #[arg(long, value_name = "TIMES", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) scale: Vec<u32>,
    /// Number of ranks, repeating those of the profile; several values are simulated in turn
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "scale")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) workers: Vec<u32>,
    /// Grow the global batch with the number of ranks; --global-batch is for the ranks of the
    /// profile
    #[arg(long)]
    pub(super) grow_batch: bool,
    /// Simulate only this split (default: both, side by side)
    #[arg(long, value_enum)]
    pub(super) split: Option<SplitArg>,
    /// Slow down the machine of a rank by FACTOR in some updates
    #[arg(long, value_name = "RANK:FROM-TO:FACTOR", value_parser = disturbance)]
    pub(super) disturb: Vec<Disturbance>,
    /// Remove a rank before update AT; it returns before update BACK, or never
    #[arg(long, value_name = "RANK:AT[-BACK]", value_parser = absence)]
    pub(super) fail: Vec<Absence>,
    /// Pause of all ranks when a rank leaves or returns
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub(super) pause: f64,
    /// Print one JSON array with an object per group and split
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SplitArg {
    /// By measured speed, so that all devices finish together
    Measured,
    /// The same number of samples for every device
    Equal,
}

impl From<SplitArg> for SplitMode {
    fn from(split: SplitArg) -> SplitMode {
        match split {
            SplitArg::Measured => SplitMode::Measured,
            SplitArg::Equal => SplitMode::Equal,
        }
    }
}

fn gbit(text: &str) -> Result<f64, String> {
    let gbit = text.parse().ok().filter(|gbit| (1e-6..=1e6).contains(gbit));
    gbit.ok_or_else(|| "expected a speed in Gbit/s, such as 1 or 0.1".to_owned())
}

fn disturbance(text: &str) -> Result<Disturbance, String> {
    let parse = || {
        let [rank, updates, factor] = text.split(':').collect::<Vec<_>>().try_into().ok()?;
        let (from, to) = updates.split_once('-')?;
        let (rank, from_update, to_update) = (rank.parse().ok()?, from.parse().ok()?, to.parse().ok()?);
        Some(Disturbance { rank, device: None, from_update, to_update, factor: factor.parse().ok()? })
    };
    parse().ok_or_else(|| "expected rank, first and last update, and factor, such as 2:50-100:3".to_owned())
}

fn absence(text: &str) -> Result<Absence, String> {
    let parse = || {
        let (rank, updates) = text.split_once(':')?;
        let (at, back) = updates.split_once('-').map_or((updates, None), |(at, back)| (at, Some(back)));
        let back_at_update = back.map(str::parse).transpose().ok()?;
        Some(Absence { rank: rank.parse().ok()?, at_update: at.parse().ok()?, back_at_update })
    };
    parse().ok_or_else(|| "expected rank and update, such as 1:80, or 1:80-120 if the rank returns".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disturbances_and_absences_are_parsed() {
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
