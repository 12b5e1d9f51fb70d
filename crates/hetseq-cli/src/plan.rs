//! `hetseq plan`: each device's share of an update and the predicted time, without training.
//!
//! The profile of the machines comes from the run directory or from a file. The task's data is not
//! opened.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use hetseq_balance::forecast::{DeviceForecast, RankForecast};
use hetseq_balance::{Forecast, Profile, SplitMode, forecast};
use hetseq_data::GlobalBatch;
use hetseq_metrics::thousands;
use hetseq_train::Config;

use crate::args::{ConfigArgs, UsageError};
use crate::output::print_line;
use crate::profile::{self, EXAMPLE, EXAMPLE_KEYS};
use crate::table::{TextTable, percent, rate, short_time};

/// The forecast lists the samples of an update one by one, so their number bounds memory and time.
const MAX_SAMPLES: usize = 10_000_000;

/// Show the planned split of an update and its predicted time, without training
///
/// For each machine it shows how long it would be idle, and how much slower an update would be
/// without it. The speeds come from a profile: every run writes one when it starts,
/// RUN/profile.json. To see what another machine or a faster network would change, edit a copy of
/// it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hetseq plan runs/bert                                        the machines of a run
  hetseq plan run.toml --profile docs/profiles/mixed-8.json    other machines
  hetseq plan runs/bert --set batch.global=8192 --json         another batch, for scripts")]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Profile of the machines (default: profile.json in the run directory)
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Tokens per sample (default: the longest in the profile)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tokens_per_sample: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn plan(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let config: Config<toml::Table> = args.config.source()?.parse()?;
    let profile = find_profile(args, &config)?;
    let tokens = profile::tokens_per_sample(&profile, args.tokens_per_sample);
    let samples = match config.batch.global {
        GlobalBatch::Sequences(samples) => samples,
        GlobalBatch::Tokens(per_update) => (per_update / tokens as usize).max(1),
    };
    if samples > MAX_SAMPLES {
        return Err(UsageError(format!(
            "batch.global = \"{}\" is an update of {} samples of {tokens} tokens; plan computes at most {}: lower \
             batch.global",
            config.batch.global,
            thousands(samples as u64),
            thousands(MAX_SAMPLES as u64)
        ))
        .into());
    }
    let forecast = forecast(&profile, config.batch.split, &vec![tokens; samples])
        .map_err(|error| UsageError(error.to_string()))?;
    if args.json {
        let mut object = serde_json::to_value(&forecast)?;
        object["tokens_per_sample"] = tokens.into();
        print_line(&object.to_string());
    } else {
        lines(&forecast, tokens).iter().for_each(|line| print_line(line));
    }
    Ok(ExitCode::SUCCESS)
}

fn find_profile(args: &PlanArgs, config: &Config<toml::Table>) -> anyhow::Result<Profile> {
    let run_profile = config.run.dir.clone().unwrap_or_default().join("profile.json");
    match &args.profile {
        Some(path) => Ok(profile::read(path)?),
        None if run_profile.exists() => Ok(profile::read(&run_profile)?),
        None => Err(UsageError(format!(
            "there is no profile of the machines at {}. Start the run once (`hetseq train`): it measures them and writes \
             that file; or write a profile by hand and pass it with --profile:\n{EXAMPLE}\n({EXAMPLE_KEYS})",
            run_profile.display()
        ))
        .into()),
    }
}

fn lines(forecast: &Forecast, tokens: u32) -> Vec<String> {
    let split = match forecast.split {
        SplitMode::Measured => "by measured speed",
        SplitMode::Weights => "by weights",
        SplitMode::Equal => "evenly",
    };
    let mut lines = vec![format!(
        "an update of {}, split {split}: {}, {} samples/s",
        profile::batch(&thousands(forecast.samples as u64), tokens),
        short_time(forecast.update_s),
        rate(forecast.samples_per_s)
    )];
    if forecast.split != SplitMode::Equal && forecast.devices.len() > 1 {
        let times = forecast.equal_s / forecast.update_s;
        lines.push(format!("split evenly: {}; this split is {times:.2} times as fast", short_time(forecast.equal_s)));
    }
    lines.push(String::new());
    lines.extend(device_table(&forecast.devices));
    if forecast.ranks.len() > 1 {
        lines.push(String::new());
        lines.extend(rank_table(&forecast.ranks, forecast.update_s));
    }
    lines
}

fn device_table(devices: &[DeviceForecast]) -> Vec<String> {
    let mut table =
        TextTable::new(["<rank", "<host", "<device", "samples", "share", "micro-batches", "computing", "idle", "<"]);
    for device in devices {
        let note = if device.left_out { "not used: it would make updates slower" } else { "" };
        table.row([
            device.rank.to_string(),
            device.host.clone(),
            device.device.clone(),
            device.samples.to_string(),
            percent(device.share),
            device.micro_batches.to_string(),
            short_time(device.compute_s),
            percent(device.idle),
            note.to_owned(),
        ]);
    }
    table.lines()
}

fn rank_table(ranks: &[RankForecast], update_s: f64) -> Vec<String> {
    let mut table =
        TextTable::new(["<rank", "<host", "computing", "exchange", "host", "waiting", "<update time without it"]);
    let part = |seconds: f64| percent(if update_s > 0.0 { seconds / update_s } else { 0.0 });
    for rank in ranks {
        table.row([
            rank.rank.to_string(),
            rank.host.clone(),
            part(rank.compute_s),
            part(rank.net_s),
            part(rank.host_s),
            part(rank.wait_s),
            match rank.without {
                Some(more) if more < -0.005 => format!("{:+.1} %: faster without it", 100.0 * more),
                Some(more) => format!("{:+.1} %", 100.0 * more),
                None if ranks.len() > 256 => "not computed for more than 256 ranks".to_owned(),
                None => "impossible: the longest samples fit no other rank".to_owned(),
            },
        ]);
    }
    table.lines()
}
