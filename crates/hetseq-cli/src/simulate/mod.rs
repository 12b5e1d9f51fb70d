//! `hetseq simulate`: predicts how fast machines would train together. `hetseq_balance::simulate`
//! simulates; this file makes larger groups and faster or slower links from a profile, and prints
//! the results side by side.

mod args;

use std::process::ExitCode;

use hetseq_balance::simulate::SimulateError;
use hetseq_balance::{Profile, Setup, Simulation, SplitMode, simulate as run_simulation};
use hetseq_metrics::{duration, thousands};
use serde::Serialize;

pub(crate) use args::SimulateArgs;

use crate::args::UsageError;
use crate::output::print_line;
use crate::profile;
use crate::table::{TextTable, percent, rate, short_time};

/// Larger groups are not listed rank by rank.
const MAX_LISTED_RANKS: usize = 32;
const MAX_LISTED_REPLANS: usize = 10;

/// A group to simulate, and its batch.
struct Case {
    link_gbit: Option<f64>,
    profile: Profile,
    samples: usize,
}

/// One element of the array that `--json` prints.
#[derive(Serialize)]
struct SimulationJson<'a> {
    /// `None` means the links of the profile.
    link_gbit: Option<f64>,
    workers: usize,
    global_batch: usize,
    tokens_per_sample: u32,
    split: SplitMode,
    median_update_s: f64,
    #[serde(flatten)]
    simulation: &'a Simulation,
}

pub(crate) fn simulate(args: &SimulateArgs) -> anyhow::Result<ExitCode> {
    let profile = profile::read(&args.profile)?;
    let tokens = profile::tokens_per_sample(&profile, args.tokens_per_sample);
    let splits = args.split.map_or(vec![SplitMode::Measured, SplitMode::Equal], |split| vec![split.into()]);
    let links = match args.link_gbit.is_empty() {
        true => vec![None],
        false => args.link_gbit.iter().copied().map(Some).collect(),
    };
    let samples = if args.grow_batch { "a growing number of".to_owned() } else { thousands(args.global_batch.into()) };
    let heading = format!(
        "{} updates of {}, device times within {} of the profile",
        thousands(args.updates.into()),
        profile::batch(&samples, tokens),
        percent(args.jitter)
    );
    let mut objects = Vec::new();
    for (number, link_gbit) in links.into_iter().enumerate() {
        let worlds = worlds(args, profile.ranks.len());
        let mut table = Vec::new();
        for &ranks in &worlds {
            let case = case(args, &profile, ranks, link_gbit);
            let mut simulations = Vec::new();
            for &split in &splits {
                let simulation = run_simulation(&case.profile, &setup(args, &case, tokens, split))
                    .map_err(|error: SimulateError| UsageError(error.to_string()))?;
                if args.json {
                    objects.push(serde_json::to_value(json(&case, tokens, split, &simulation))?);
                }
                simulations.push(simulation);
            }
            table.push((case, simulations));
        }
        if !args.json && number == 0 {
            // Only after a simulation has succeeded: an error must leave standard output empty.
            print_line(&heading);
        }
        if !args.json {
            print_table(&table, &splits);
        }
    }
    if args.json {
        print_line(&serde_json::Value::from(objects).to_string());
    }
    Ok(ExitCode::SUCCESS)
}

/// The number of ranks of each group.
fn worlds(args: &SimulateArgs, ranks: usize) -> Vec<usize> {
    match (&args.scale[..], &args.workers[..]) {
        ([], []) => vec![ranks],
        ([], workers) => workers.iter().map(|&workers| workers as usize).collect(),
        (scale, _) => scale.iter().map(|&times| ranks * times as usize).collect(),
    }
}

/// A group of `ranks` ranks, which repeats those of the profile.
fn case(args: &SimulateArgs, profile: &Profile, ranks: usize, link_gbit: Option<f64>) -> Case {
    let mut grown = profile.clone();
    grown.ranks = profile.ranks.iter().cycle().take(ranks).cloned().collect();
    if let Some(gbit) = link_gbit {
        for rank in &mut grown.ranks {
            rank.link.bytes_per_s = gbit * 1e9 / 8.0;
        }
    }
    let samples = args.global_batch as usize;
    let samples = match args.grow_batch {
        true => (samples * ranks / profile.ranks.len()).max(1),
        false => samples,
    };
    Case { link_gbit, profile: grown, samples }
}

fn setup(args: &SimulateArgs, case: &Case, tokens: u32, split: SplitMode) -> Setup {
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

fn json<'a>(case: &Case, tokens: u32, split: SplitMode, simulation: &'a Simulation) -> SimulationJson<'a> {
    SimulationJson {
        link_gbit: case.link_gbit,
        workers: case.profile.ranks.len(),
        global_batch: case.samples,
        tokens_per_sample: tokens,
        split,
        median_update_s: simulation.median_update_s(),
        simulation,
    }
}

fn print_table(groups: &[(Case, Vec<Simulation>)], splits: &[SplitMode]) {
    let mut lines = vec![String::new()];
    if let Some(gbit) = groups.first().and_then(|(case, _)| case.link_gbit) {
        lines.push(format!("links of {gbit} Gbit/s"));
    }
    lines.extend(match splits {
        [_] => one_split(groups),
        _ => side_by_side(groups),
    });
    if let [(case, simulations)] = groups {
        lines.extend(simulations.first().map(|first| details(&case.profile, first)).into_iter().flatten());
    }
    lines.iter().for_each(|line| print_line(line));
}

/// The cells of a case: ranks and global batch.
fn size(case: &Case) -> [String; 2] {
    [thousands(case.profile.ranks.len() as u64), thousands(case.samples as u64)]
}

/// The cells of a simulation: samples per second, efficiency and time of an update.
fn result(simulation: &Simulation) -> [String; 3] {
    [rate(simulation.samples_per_s), percent(simulation.efficiency), short_time(simulation.median_update_s())]
}

fn one_split(groups: &[(Case, Vec<Simulation>)]) -> Vec<String> {
    let mut table = TextTable::new(["ranks", "batch", "samples/s", "efficiency", "update"]);
    let rows =
        groups.iter().flat_map(|(case, simulations)| simulations.iter().map(move |simulation| (case, simulation)));
    for (case, simulation) in rows {
        let ([ranks, batch], [speed, efficiency, update]) = (size(case), result(simulation));
        table.row([ranks, batch, speed, efficiency, update]);
    }
    table.lines()
}

fn side_by_side(groups: &[(Case, Vec<Simulation>)]) -> Vec<String> {
    let mut table = TextTable::new([
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
    for (case, simulations) in groups {
        let [measured, equal] = &simulations[..] else { continue };
        let gain = format!("{:.2} x", measured.samples_per_s / equal.samples_per_s);
        let ([ranks, batch], [speed, efficiency, update]) = (size(case), result(measured));
        let [equal_speed, equal_efficiency, equal_update] = result(equal);
        table.row([ranks, batch, speed, efficiency, update, equal_speed, equal_efficiency, equal_update, gain]);
    }
    table.lines()
}

/// The details of a single group: where each rank's time goes, the new plans, and the pauses.
fn details(profile: &Profile, simulation: &Simulation) -> Vec<String> {
    let mut lines = Vec::new();
    if profile.ranks.len() <= MAX_LISTED_RANKS {
        let mut table =
            TextTable::new(["<rank", "<host", "alone", "share", "computing", "exchange", "host", "waiting", "away"]);
        let part = |of: f64| percent(if simulation.seconds > 0.0 { of / simulation.seconds } else { 0.0 });
        for (number, (rank, time)) in profile.ranks.iter().zip(&simulation.ranks).enumerate() {
            table.row([
                number.to_string(),
                rank.host.clone(),
                format!("{}/s", rate(time.alone_samples_per_s)),
                percent(time.samples as f64 / simulation.samples.max(1) as f64),
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
    if simulation.paused_s > 0.0 {
        lines.push(format!("pauses when ranks left or returned: {}", duration(simulation.paused_s)));
    }
    for replan in simulation.replans.iter().take(MAX_LISTED_REPLANS) {
        lines.push(format!(
            "new plan from update {}: {} instead of {}",
            thousands(replan.update),
            short_time(replan.after_s),
            short_time(replan.before_s)
        ));
    }
    if simulation.replans.len() > MAX_LISTED_REPLANS {
        lines.push(format!("and {} more new plans", simulation.replans.len() - MAX_LISTED_REPLANS));
    }
    lines
}
