//! `hetseq plan`: who would do how much, and how long updates would take, without training.
//!
//! The profile is what the trainer measured of its machines at the start of a run, or a file. The task's data is not
//! opened.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use hetseq_balance::forecast::{DeviceForecast, RankForecast};
use hetseq_balance::{Forecast, Profile, Split, forecast};
use hetseq_data::GlobalBatch;
use hetseq_metrics::thousands;
use hetseq_train::Config;

use crate::args::{ConfigArgs, UsageError};
use crate::output::print_line;
use crate::profile::{self, EXAMPLE, EXAMPLE_MEANS};
use crate::table::{Table, percent, rate, short_time};

/// The samples of an update are listed one by one, so that their number bounds memory and time.
const MOST_SAMPLES: usize = 10_000_000;

/// Show who would do how much of an update and how long it would take, without training.
///
/// Of each machine it tells how long it would be idle, and how much slower the group would be without it. What is known of
/// the machines is in a profile: every run writes one to its directory when it starts, RUN/profile.json. Change the numbers
/// in a copy to ask what another machine or a faster network would bring.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// What is known of the machines (default: profile.json of the run directory)
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Tokens of each sample (default: the longest that the profile has)
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
        GlobalBatch::Tokens(of_update) => (of_update / tokens as usize).max(1),
    };
    if samples > MOST_SAMPLES {
        return Err(UsageError(format!(
            "batch.global = \"{}\" is an update of {} samples of {tokens} tokens; plan computes at most {}: lower \
             batch.global",
            config.batch.global,
            thousands(samples as u64),
            thousands(MOST_SAMPLES as u64)
        ))
        .into());
    }
    let told = forecast(&profile, config.batch.split, &vec![tokens; samples])
        .map_err(|error| UsageError(error.to_string()))?;
    if args.json {
        let mut object = serde_json::to_value(&told)?;
        object["tokens_per_sample"] = tokens.into();
        print_line(&object.to_string());
    } else {
        lines(&told, tokens).iter().for_each(|line| print_line(line));
    }
    Ok(ExitCode::SUCCESS)
}

fn find_profile(args: &PlanArgs, config: &Config<toml::Table>) -> anyhow::Result<Profile> {
    let of_run = config.run.dir.clone().unwrap_or_default().join("profile.json");
    match &args.profile {
        Some(path) => Ok(profile::read(path)?),
        None if of_run.exists() => Ok(profile::read(&of_run)?),
        None => Err(UsageError(format!(
            "nothing is known of the machines: there is no {}. Start the run once (`hetseq train`), it measures them and \
             writes that file; or write a profile by hand and give it with --profile:\n{EXAMPLE}\n({EXAMPLE_MEANS})",
            of_run.display()
        ))
        .into()),
    }
}

fn lines(told: &Forecast, tokens: u32) -> Vec<String> {
    let split = match told.split {
        Split::Measured => "by measured speed",
        Split::Weights => "by weights",
        Split::Equal => "evenly",
    };
    let mut lines = vec![format!(
        "an update of {}, split {split}: {}, {} samples/s",
        profile::batch(&thousands(told.samples as u64), tokens),
        short_time(told.update_s),
        rate(told.samples_per_s)
    )];
    if told.split != Split::Equal && told.devices.len() > 1 {
        let times = told.equal_s / told.update_s;
        lines.push(format!("split evenly: {}, so this is {times:.2} times as fast", short_time(told.equal_s)));
    }
    lines.push(String::new());
    lines.extend(device_table(&told.devices));
    if told.ranks.len() > 1 {
        lines.push(String::new());
        lines.extend(rank_table(&told.ranks, told.update_s));
    }
    lines
}

fn device_table(devices: &[DeviceForecast]) -> Vec<String> {
    let mut table =
        Table::new(["<rank", "<host", "<device", "samples", "share", "micro-batches", "computing", "idle", "<"]);
    for device in devices {
        let note = if device.left_out { "left out: it would make updates slower" } else { "" };
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
    let mut table = Table::new(["<rank", "<host", "computing", "exchange", "host", "waiting", "<an update without it"]);
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
                None if ranks.len() > 256 => "not asked in so large a group".to_owned(),
                None => "impossible: nobody else can take the longest samples".to_owned(),
            },
        ]);
    }
    table.lines()
}
