//! `hetseq simulate`: how fast machines would train together. What is played is in `hetseq_balance::simulate`; here a
//! profile is repeated and given other lines, and the results are laid side by side.

mod args;

use std::process::ExitCode;

use hetseq_balance::simulate::SimulateError;
use hetseq_balance::{Profile, Setup, Simulation, Split, simulate as play};
use hetseq_metrics::{duration, thousands};
use serde::Serialize;

pub(crate) use args::SimulateArgs;

use crate::args::UsageError;
use crate::output::print_line;
use crate::profile;
use crate::table::{Table, percent, rate, short_time};

/// More ranks than this are not listed one by one.
const MOST_RANKS: usize = 32;
const MOST_REPLANS: usize = 10;

/// A group and what is to be played on it.
struct Case {
    line_gbit: Option<f64>,
    profile: Profile,
    samples: usize,
}

/// As `--json` prints it.
#[derive(Serialize)]
struct Outcome<'a> {
    /// None: the profile's own lines.
    line_gbit: Option<f64>,
    workers: usize,
    global_batch: usize,
    tokens_per_sample: u32,
    split: Split,
    median_update_s: f64,
    #[serde(flatten)]
    played: &'a Simulation,
}

pub(crate) fn simulate(args: &SimulateArgs) -> anyhow::Result<ExitCode> {
    let profile = profile::read(&args.profile)?;
    let tokens = profile::tokens_per_sample(&profile, args.tokens_per_sample);
    let splits = args.split.map_or(vec![Split::Measured, Split::Equal], |split| vec![split.into()]);
    let lines = match args.line_gbit.is_empty() {
        true => vec![None],
        false => args.line_gbit.iter().copied().map(Some).collect(),
    };
    let samples = if args.grow_batch { "ever more".to_owned() } else { thousands(args.global_batch.into()) };
    let heading = format!(
        "{} updates of {}, times within {} of the profile's",
        thousands(args.updates.into()),
        profile::batch(&samples, tokens),
        percent(args.jitter)
    );
    let mut told = Vec::new();
    for (number, line_gbit) in lines.into_iter().enumerate() {
        let worlds = worlds(args, profile.ranks.len());
        let mut table = Vec::new();
        for &ranks in &worlds {
            let case = case(args, &profile, ranks, line_gbit);
            let mut outcomes = Vec::new();
            for &split in &splits {
                let played = play(&case.profile, &setup(args, &case, tokens, split))
                    .map_err(|error: SimulateError| UsageError(error.to_string()))?;
                if args.json {
                    told.push(serde_json::to_value(outcome(&case, tokens, split, &played))?);
                }
                outcomes.push(played);
            }
            table.push((case, outcomes));
        }
        if !args.json && number == 0 {
            // Not before something was played: what cannot be is refused without a word on standard output.
            print_line(&heading);
        }
        if !args.json {
            print_table(&table, &splits);
        }
    }
    if args.json {
        print_line(&serde_json::Value::from(told).to_string());
    }
    Ok(ExitCode::SUCCESS)
}

/// How many ranks each group has.
fn worlds(args: &SimulateArgs, ranks: usize) -> Vec<usize> {
    match (&args.scale[..], &args.workers[..]) {
        ([], []) => vec![ranks],
        ([], workers) => workers.iter().map(|&workers| workers as usize).collect(),
        (scale, _) => scale.iter().map(|&times| ranks * times as usize).collect(),
    }
}

/// The profile's ranks in turn, until there are enough.
fn case(args: &SimulateArgs, profile: &Profile, ranks: usize, line_gbit: Option<f64>) -> Case {
    let mut grown = profile.clone();
    grown.ranks = profile.ranks.iter().cycle().take(ranks).cloned().collect();
    if let Some(gbit) = line_gbit {
        for rank in &mut grown.ranks {
            rank.line.bytes_per_s = gbit * 1e9 / 8.0;
        }
    }
    let samples = args.global_batch as usize;
    let samples = match args.grow_batch {
        true => (samples * ranks / profile.ranks.len()).max(1),
        false => samples,
    };
    Case { line_gbit, profile: grown, samples }
}

fn setup(args: &SimulateArgs, case: &Case, tokens: u32, split: Split) -> Setup {
    Setup {
        split,
        seed: args.seed,
        jitter: args.jitter,
        disturbances: args.disturb.clone(),
        absences: args.fail.clone(),
        pause_s: args.pause,
        ..Setup::uniform(case.samples, tokens, args.updates.into())
    }
}

fn outcome<'a>(case: &Case, tokens: u32, split: Split, played: &'a Simulation) -> Outcome<'a> {
    Outcome {
        line_gbit: case.line_gbit,
        workers: case.profile.ranks.len(),
        global_batch: case.samples,
        tokens_per_sample: tokens,
        split,
        median_update_s: played.median_update_s(),
        played,
    }
}

fn print_table(groups: &[(Case, Vec<Simulation>)], splits: &[Split]) {
    let mut lines = vec![String::new()];
    if let Some(gbit) = groups.first().and_then(|(case, _)| case.line_gbit) {
        lines.push(format!("lines of {gbit} Gbit/s"));
    }
    lines.extend(match splits {
        [_] => one_split(groups),
        _ => side_by_side(groups),
    });
    if let [(case, outcomes)] = groups {
        lines.extend(outcomes.first().map(|played| details(&case.profile, played)).into_iter().flatten());
    }
    lines.iter().for_each(|line| print_line(line));
}

fn one_split(groups: &[(Case, Vec<Simulation>)]) -> Vec<String> {
    let mut table = Table::new(["ranks", "batch", "samples/s", "efficiency", "update"]);
    for (case, played) in groups.iter().flat_map(|(case, outcomes)| outcomes.iter().map(move |played| (case, played))) {
        table.row([
            thousands(case.profile.ranks.len() as u64),
            thousands(case.samples as u64),
            rate(played.samples_per_s),
            percent(played.efficiency),
            short_time(played.median_update_s()),
        ]);
    }
    table.lines()
}

fn side_by_side(groups: &[(Case, Vec<Simulation>)]) -> Vec<String> {
    let mut table = Table::new([
        "ranks",
        "batch",
        "samples/s",
        "efficiency",
        "update",
        "evenly: samples/s",
        "efficiency",
        "update",
        "gain",
    ]);
    for (case, outcomes) in groups {
        let [measured, equal] = &outcomes[..] else { continue };
        table.row([
            thousands(case.profile.ranks.len() as u64),
            thousands(case.samples as u64),
            rate(measured.samples_per_s),
            percent(measured.efficiency),
            short_time(measured.median_update_s()),
            rate(equal.samples_per_s),
            percent(equal.efficiency),
            short_time(equal.median_update_s()),
            format!("{:.2} x", measured.samples_per_s / equal.samples_per_s),
        ]);
    }
    table.lines()
}

/// Of one group: where each rank's time goes, what was planned anew, and what failures cost.
fn details(profile: &Profile, played: &Simulation) -> Vec<String> {
    let mut lines = Vec::new();
    if profile.ranks.len() <= MOST_RANKS {
        let mut table =
            Table::new(["<rank", "<host", "alone", "share", "computing", "exchange", "host", "waiting", "away"]);
        let part = |of: f64| percent(if played.seconds > 0.0 { of / played.seconds } else { 0.0 });
        for (number, (rank, time)) in profile.ranks.iter().zip(&played.ranks).enumerate() {
            table.row([
                number.to_string(),
                rank.host.clone(),
                format!("{}/s", rate(time.alone_samples_per_s)),
                percent(time.samples as f64 / played.samples.max(1) as f64),
                part(time.compute_s),
                part(time.net_s),
                part(time.host_s),
                part(time.wait_s),
                part(time.away_s),
            ]);
        }
        lines.push(String::new());
        lines.extend(table.lines());
    }
    if played.paused_s > 0.0 {
        lines.push(format!("pauses when ranks left or returned: {}", duration(played.paused_s)));
    }
    for replan in played.replans.iter().take(MOST_REPLANS) {
        lines.push(format!(
            "planned anew from update {}: {} instead of {}",
            thousands(replan.update),
            short_time(replan.after_s),
            short_time(replan.before_s)
        ));
    }
    if played.replans.len() > MOST_REPLANS {
        lines.push(format!("and {} times more", played.replans.len() - MOST_REPLANS));
    }
    lines
}
