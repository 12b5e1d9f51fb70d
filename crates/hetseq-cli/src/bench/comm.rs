//! `hetseq bench comm`: times the all-reduce that training uses, with values that are ready on all
//! ranks at once, and verifies every timed sum.
//!
//! By default this process starts the ranks on this machine. With the distributed flags of `train`,
//! or `RANK` and its companions in the environment, this process is one of several ranks, for
//! example on other machines.

use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hetseq_comm::{
    Algorithm, CommError, Contribution, Group, Identity, Options, RankEnv, Rendezvous, Secret, Shards, TransportKind,
    WireFormat,
};
use hetseq_metrics::median;
use hetseq_train::{Dtype, wire_format};
use serde::Serialize;

use crate::args::UsageError;
use crate::bench::args::BenchCommArgs;
use crate::local_ranks::LocalRanks;
use crate::output::{eprint_line, print_line};
use crate::renamed;
use crate::train::secret;

pub(crate) fn comm(args: &BenchCommArgs) -> anyhow::Result<ExitCode> {
    let rank_env = args.rank_args.rank_env(args.transport)?;
    if rank_env.world > 1 {
        check(args, rank_env.world)?;
    }
    if rank_env.world > 1 || args.transport == TransportKind::Mpi {
        measure(args, &rank_env)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.rank_args.is_given() {
        let problem = "an all-reduce needs at least two ranks; leave out the --distributed options to start ranks here";
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

/// Checks the arguments before any rank waits for another.
fn check(args: &BenchCommArgs, world: usize) -> Result<(), UsageError> {
    if world < 2 {
        return Err(UsageError(format!("--world {world}: an all-reduce needs at least two ranks")));
    }
    if ![0, world].contains(&args.shard_weight.len()) {
        return Err(UsageError(format!("--shard-weight has {} weights for {world} ranks", args.shard_weight.len())));
    }
    for &wire in &args.wire_dtype {
        // Any length at which the weights give different shards.
        let chosen = Algorithm::Ring.choose(wire_format(wire, 0), &shards(&args.shard_weight, 1 << 20, world));
        if args.algorithm.contains(&Algorithm::Ring) && chosen != Algorithm::Ring {
            return Err(UsageError(
                "--algorithm ring needs --wire-dtype f32 and equal shards: a ring rounds at every hop and has no shard \
                 weights; use auto or direct"
                    .to_owned(),
            ));
        }
    }
    Ok(())
}

fn shards(weights: &[f64], floats: usize, world: usize) -> Shards {
    if weights.is_empty() { Shards::even(floats, world) } else { Shards::weighted(floats, weights) }
}

/// Measures the links and derives the shard weights from them, as training does.
fn measured_shard_weights(group: &mut Group) -> anyhow::Result<Vec<f64>> {
    let links = hetseq_train::profiling::links::measure(group)?;
    if group.rank() == 0 {
        for (rank, link) in links.iter().enumerate() {
            let (mbit_per_s, latency_us) = (8e-6 * link.bytes_per_s, 1e6 * link.latency_s);
            eprint_line(&format!("rank {rank}: {mbit_per_s:.0} Mbit/s, {latency_us:.0} us"));
        }
    }
    Ok(hetseq_balance::shard_weights(&links))
}

/// Runs the same command once per rank; rank 0 prints.
fn on_this_machine(world: usize) -> anyhow::Result<()> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).context("generating a secret")?;
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let ranks = LocalRanks::start(world, |rank, command| {
        command.args(std::env::args().skip(1).map(|word| renamed::new_name(&word)));
        if std::env::var_os("HETSEQ_SECRET").is_none() {
            command.env("HETSEQ_SECRET", &secret);
        }
        if rank > 0 {
            command.stdout(Stdio::null());
        }
        Ok(())
    })?;
    let statuses = ranks.wait(None)?;
    if statuses.iter().any(|status| !status.success()) {
        let ended = statuses.iter().enumerate().map(|(rank, status)| format!("rank {rank}: {status}"));
        bail!("not all ranks succeeded ({})", ended.collect::<Vec<_>>().join(", "));
    }
    Ok(())
}

/// A result as `--json` prints it; scripts depend on the names.
#[derive(Serialize)]
struct Report {
    backend: &'static str,
    world: usize,
    bytes: usize,
    #[serde(rename = "wire")]
    wire_dtype: Dtype,
    /// The algorithm that was used, never `auto`.
    #[serde(rename = "route")]
    algorithm: Algorithm,
    rounds: usize,
    median_ms: f64,
    best_ms: f64,
    /// What each rank sends and receives, divided by the median time.
    #[serde(rename = "line_mbit_per_s")]
    link_mbit_per_s: f64,
    verified: bool,
}

fn measure(args: &BenchCommArgs, rank_env: &RankEnv) -> anyhow::Result<()> {
    let secret = match secret()? {
        Some(secret) => Secret::Given(secret),
        // With a shared directory the ranks exchange a secret there; MPI has its launcher.
        None if matches!(rank_env.rendezvous, Rendezvous::Directory(_)) => Secret::None,
        None if args.transport == TransportKind::Mpi => Secret::None,
        None => {
            let problem = "HETSEQ_SECRET is not set, and without it any program that reaches the port could join: set it to \
                           the same value on all ranks; export HETSEQ_SECRET=$(openssl rand -hex 16) generates one";
            return Err(UsageError(problem.to_owned()).into());
        }
    };
    let options = Options {
        join: Duration::from_secs(60),
        secret,
        encrypt: args.encrypt,
        transport: args.transport,
        ..Options::default()
    };
    let identity = Identity::new().with("command", "bench comm").with("build", hetseq_train::BUILD);
    let mut group = Group::join(rank_env, &identity, &options)?;
    check(args, group.world())?;
    let prints = group.rank() == 0;
    let weights = if args.measure_links { measured_shard_weights(&mut group)? } else { args.shard_weight.clone() };
    if prints && !args.json {
        print_line("world       MB dtype  algorithm   median ms    best ms   Mbit/s per rank and direction");
    }
    for &megabytes in &args.mb {
        let floats = (megabytes * 1e6 / 4.0) as usize;
        for &dtype in &args.wire_dtype {
            for &algorithm in &args.algorithm {
                let report = time(&mut group, args, &weights, floats, dtype, algorithm)?;
                if prints && args.json {
                    print_line(&serde_json::to_string(&report)?);
                } else if prints {
                    print_line(&format!(
                        "{:>5} {megabytes:>8} {:>5}  {:<9} {:>11.2} {:>10.2} {:>8.0}",
                        report.world,
                        report.wire_dtype,
                        report.algorithm,
                        report.median_ms,
                        report.best_ms,
                        report.link_mbit_per_s
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
    weights: &[f64],
    floats: usize,
    wire_dtype: Dtype,
    algorithm: Algorithm,
) -> anyhow::Result<Report> {
    let (rank, world) = (group.rank(), group.world());
    let (shards, wire) = (shards(weights, floats, world), wire_format(wire_dtype, 0));
    let algorithm = algorithm.choose(wire, &shards);
    let bytes_each = if wire == WireFormat::F32 { 4 } else { 2 };
    let mut data = vec![0.0f32; floats];
    let mut seconds = Vec::new();
    let mut last_message = Instant::now();
    for round in 0..=args.rounds as usize {
        let offset = round % OFFSETS;
        fill(&mut data, rank + 1 + offset);
        group.barrier()?;
        let start = Instant::now();
        let mut contribution = Some(Contribution::Both { note: Vec::new(), data });
        data = group.all_reduce::<CommError>(&shards, wire, algorithm, || Ok(contribution.take()))?.data;
        // The first round is not timed: it pays for page faults and opens TCP's windows.
        if round > 0 {
            seconds.push(start.elapsed().as_secs_f64());
        }
        verify(&data, (1..=world).map(|rank| rank + offset).sum(), wire)?;
        if rank == 0 && last_message.elapsed() > Duration::from_secs(2) {
            eprint_line(&format!("round {round}/{}: {:.0} ms", args.rounds, 1e3 * start.elapsed().as_secs_f64()));
            last_message = Instant::now();
        }
    }
    let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    let median = median(seconds);
    let sent = 2.0 * (world - 1) as f64 / world as f64 * (floats * bytes_each) as f64;
    Ok(Report {
        backend: "hetseq",
        world,
        bytes: 4 * floats,
        wire_dtype,
        algorithm,
        rounds: args.rounds as usize,
        median_ms: 1e3 * median,
        best_ms: 1e3 * best,
        link_mbit_per_s: 8e-6 * sent / median,
        verified: true,
    })
}

/// Consecutive rounds use different numbers. They repeat after this many rounds, so that they stay
/// small.
const OFFSETS: usize = 8;

/// Fills the vector with small integers. Up to 1,500 ranks the sums stay below 2^24, so they are
/// exact in f32 in any order of summation.
fn fill(data: &mut [f32], factor: usize) {
    for (at, value) in data.iter_mut().enumerate() {
        *value = (factor * (at % 7 + 1)) as f32;
    }
}

/// Compares the sum with the expected one. In bf16 each contribution and the sum itself are rounded
/// to 8 bits, by at most 1/512 each.
fn verify(data: &[f32], factor: usize, wire: WireFormat) -> anyhow::Result<()> {
    let tolerance = if wire == WireFormat::F32 { 0.0 } else { 1.0 / 128.0 };
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
        let bf16 = wire_format(Dtype::Bf16, 0);
        let mut sum = vec![0.0; 20];
        fill(&mut sum, 300);
        assert!(verify(&sum, 300, WireFormat::F32).is_ok() && verify(&sum, 300, bf16).is_ok());
        sum[19] = sum[19].next_up();
        assert!(verify(&sum, 300, WireFormat::F32).is_err() && verify(&sum, 300, bf16).is_ok());
        for wrong in [sum[19] * 1.01, 0.0, f32::NAN] {
            sum[19] = wrong;
            assert!(verify(&sum, 300, bf16).is_err(), "{wrong}");
        }
    }
}
