//! `hetseq bench comm`: how fast ranks add up a vector, with every timed sum verified.
//!
//! By default the ranks are processes on this machine, started here. With a place among the ranks (the flags of `train`, or
//! `RANK` and its like) this process is one of several that were started elsewhere, such as on other machines.

use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hetseq_comm::{Group, Identity, Options, Rendezvous, Route, Secret, Shards, Wire};
use hetseq_metrics::median;
use hetseq_train::WireType;
use serde::Serialize;

use crate::args::{BenchCommArgs, UsageError};
use crate::output::{print_line, say};
use crate::train::secret;
use crate::workers::Workers;

pub(crate) fn comm(args: &BenchCommArgs) -> anyhow::Result<ExitCode> {
    let place = args.place.find()?;
    if place.world > 1 {
        check(args, place.world)?;
        measure(args)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.place.is_given() {
        let problem = "a sum needs at least two ranks; leave the --distributed flags out to start some here";
        return Err(UsageError(problem.to_owned()).into());
    }
    for &world in &args.world {
        check(args, world)?;
    }
    for &world in &args.world {
        on_this_machine(world)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What cannot be meant, before anybody waits for anybody.
fn check(args: &BenchCommArgs, world: usize) -> Result<(), UsageError> {
    if world < 2 {
        return Err(UsageError(format!("--world {world}: a sum needs at least two ranks")));
    }
    if ![0, world].contains(&args.own.len()) {
        return Err(UsageError(format!("--own has {} weights for {world} ranks", args.own.len())));
    }
    for &wire in &args.wire {
        // Any length will do that weights can be told apart by.
        let chosen = Route::Ring.choose(wire.wire(0), &shards(&args.own, 1 << 20, world));
        if args.route.contains(&Route::Ring) && chosen != Route::Ring {
            return Err(UsageError(
                "--route ring is for --wire f32 and even shares: it rounds at every hop, and cannot \
                                   weigh owners; use auto or direct"
                    .to_owned(),
            ));
        }
    }
    Ok(())
}

fn shards(own: &[f64], floats: usize, world: usize) -> Shards {
    if own.is_empty() { Shards::even(floats, world) } else { Shards::weighted(floats, own) }
}

/// As training does it.
fn by_lines(group: &mut Group) -> anyhow::Result<Vec<f64>> {
    let lines = hetseq_train::lines::measure(group)?;
    if group.rank() == 0 {
        for (rank, line) in lines.iter().enumerate() {
            let (mbit_per_s, latency_us) = (8e-6 * line.bytes_per_s, 1e6 * line.latency_s);
            say(&format!("rank {rank}: {mbit_per_s:.0} Mbit/s, {latency_us:.0} us"));
        }
    }
    Ok(hetseq_balance::ownership(&lines))
}

/// The same command once per rank; rank 0 prints.
fn on_this_machine(world: usize) -> anyhow::Result<()> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).context("drawing a secret")?;
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let workers = Workers::start(world, |rank, command| {
        command.args(std::env::args_os().skip(1));
        if std::env::var_os("HETSEQ_SECRET").is_none() {
            command.env("HETSEQ_SECRET", &secret);
        }
        if rank > 0 {
            command.stdout(Stdio::null());
        }
        Ok(())
    })?;
    let statuses = workers.wait(None)?;
    if statuses.iter().any(|status| !status.success()) {
        let ends: Vec<String> = statuses.iter().enumerate().map(|(rank, end)| format!("rank {rank}: {end}")).collect();
        bail!("not all ranks ended well ({})", ends.join(", "));
    }
    Ok(())
}

#[derive(Serialize)]
struct Report {
    engine: &'static str,
    world: usize,
    bytes: usize,
    wire: WireType,
    /// The one that was taken.
    route: Route,
    rounds: usize,
    median_ms: f64,
    best_ms: f64,
    /// What each rank sends and receives, over the median time.
    line_mbit_per_s: f64,
    verified: bool,
}

fn measure(args: &BenchCommArgs) -> anyhow::Result<()> {
    let place = args.place.find()?;
    let secret = match secret()? {
        Some(secret) => Secret::Given(secret),
        // In a shared directory the ranks find one by themselves.
        None if matches!(place.rendezvous, Rendezvous::Directory(_)) => Secret::None,
        None => {
            let problem = "HETSEQ_SECRET is not set, and without it anybody who reaches the port could join: set it to \
                           the same on all ranks; export HETSEQ_SECRET=$(openssl rand -hex 16) makes one";
            return Err(UsageError(problem.to_owned()).into());
        }
    };
    let options = Options { join: Duration::from_secs(60), secret, encrypt: args.encrypt, ..Options::default() };
    let identity = Identity::new().with("command", "bench comm").with("build", hetseq_train::BUILD);
    let mut group = Group::join(&place, &identity, &options)?;
    let speaks = group.rank() == 0;
    let own = if args.measure { by_lines(&mut group)? } else { args.own.clone() };
    if speaks && !args.json {
        print_line("world       MB  wire  route   median ms    best ms   Mbit/s per rank and direction");
    }
    for &megabytes in &args.mb {
        let floats = (megabytes * 1e6 / 4.0) as usize;
        for &wire in &args.wire {
            for &route in &args.route {
                let report = time(&mut group, args, &own, floats, wire, route)?;
                if speaks && args.json {
                    print_line(&serde_json::to_string(&report)?);
                } else if speaks {
                    print_line(&format!(
                        "{:>5} {megabytes:>8} {:>5}  {:<6} {:>10.2} {:>10.2} {:>9.0}",
                        report.world,
                        report.wire,
                        report.route,
                        report.median_ms,
                        report.best_ms,
                        report.line_mbit_per_s
                    ));
                }
            }
        }
    }
    group.close();
    Ok(())
}

fn time(
    group: &mut Group,
    args: &BenchCommArgs,
    own: &[f64],
    floats: usize,
    wire_type: WireType,
    route: Route,
) -> anyhow::Result<Report> {
    let (rank, world) = (group.rank(), group.world());
    let (shards, wire) = (shards(own, floats, world), wire_type.wire(0));
    let route = route.choose(wire, &shards);
    let bytes_each = if wire == Wire::F32 { 4 } else { 2 };
    let mut data = vec![0.0f32; floats];
    let mut seconds = Vec::new();
    let mut said = Instant::now();
    for round in 0..=args.rounds as usize {
        let turn = round % TURNS;
        fill(&mut data, rank + 1 + turn);
        group.barrier()?;
        let start = Instant::now();
        group.all_reduce(&mut data, &shards, wire, route)?;
        // The first is for page faults and TCP's windows.
        if round > 0 {
            seconds.push(start.elapsed().as_secs_f64());
        }
        verify(&data, (1..=world).map(|rank| rank + turn).sum(), wire)?;
        if rank == 0 && said.elapsed() > Duration::from_secs(2) {
            say(&format!("round {round}/{}: {:.0} ms", args.rounds, 1e3 * start.elapsed().as_secs_f64()));
            said = Instant::now();
        }
    }
    let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    let median = median(seconds);
    let sent = 2.0 * (world - 1) as f64 / world as f64 * (floats * bytes_each) as f64;
    Ok(Report {
        engine: "hetseq",
        world,
        bytes: 4 * floats,
        wire: wire_type,
        route,
        rounds: args.rounds as usize,
        median_ms: 1e3 * median,
        best_ms: 1e3 * best,
        line_mbit_per_s: 8e-6 * sent / median,
        verified: true,
    })
}

/// So many rounds differ; then their numbers come again, so that they stay small.
const TURNS: usize = 8;

/// Small whole numbers: up to 1,500 ranks their sums stay below 2^24 and so are exact in f32, in whatever order they are
/// added.
fn fill(data: &mut [f32], factor: usize) {
    for (at, value) in data.iter_mut().enumerate() {
        *value = (factor * (at % 7 + 1)) as f32;
    }
}

/// In bf16 each of the sum's parts and the sum itself were rounded to 8 bits, each by at most 1/512.
fn verify(data: &[f32], factor: usize, wire: Wire) -> anyhow::Result<()> {
    let tolerance = if wire == Wire::F32 { 0.0 } else { 1.0 / 128.0 };
    for (at, value) in data.iter().enumerate() {
        let expected = (factor * (at % 7 + 1)) as f32;
        let deviation = (value - expected).abs();
        if deviation.is_nan() || deviation > expected * tolerance {
            bail!("the sum is wrong at {at}: {value} instead of {expected}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_sum_is_found() {
        let bf16 = WireType::Bf16.wire(0);
        let mut sum = vec![0.0; 20];
        fill(&mut sum, 300);
        assert!(verify(&sum, 300, Wire::F32).is_ok() && verify(&sum, 300, bf16).is_ok());
        sum[19] = sum[19].next_up();
        assert!(verify(&sum, 300, Wire::F32).is_err() && verify(&sum, 300, bf16).is_ok());
        for wrong in [sum[19] * 1.01, 0.0, f32::NAN] {
            sum[19] = wrong;
            assert!(verify(&sum, 300, bf16).is_err(), "{wrong}");
        }
    }
}
