//! `hetseq bench comm`: how fast ranks add up a vector, with every timed sum verified.
//!
//! By default the ranks are processes on this machine, started here. With a place among the ranks (the flags of `train`, or
//! `RANK` and its like) this process is one of several that were started elsewhere, such as on other machines.

use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hetseq_comm::{Group, Identity, Options, Route, Secret, Shards, Wire};
use hetseq_metrics::median;
use serde::Serialize;

use crate::args::{BenchCommArgs, RouteArg, UsageError, WireArg};
use crate::output::{print_line, say};
use crate::train::secret;

pub(crate) fn comm(args: &BenchCommArgs) -> anyhow::Result<ExitCode> {
    let place = args.place.find()?;
    if place.world > 1 {
        measure(args)?;
        return Ok(ExitCode::SUCCESS);
    }
    for &world in &args.world {
        if world < 2 {
            return Err(UsageError(format!("--world {world}: a sum needs at least two ranks")).into());
        }
        on_this_machine(world)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The same command once per rank; rank 0 prints.
fn on_this_machine(world: usize) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("finding this program")?;
    // Freed again before rank 0 binds it; a clash is unlikely and would be a clear error.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).context("drawing a secret")?;
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut ranks = Ranks(Vec::new());
    for rank in 0..world {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).stdin(Stdio::null());
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", world.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        if std::env::var_os("HETSEQ_SECRET").is_none() {
            command.env("HETSEQ_SECRET", &secret);
        }
        if rank > 0 {
            command.stdout(Stdio::null());
        }
        ranks.0.push(command.spawn().context("starting a rank")?);
    }
    for (rank, child) in ranks.0.iter_mut().enumerate() {
        // Each rank has its own deadlines.
        let status = child.wait()?;
        if !status.success() {
            bail!("rank {rank} of {world} failed ({status})");
        }
    }
    Ok(())
}

/// Those that still run are ended when this is dropped.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.0 {
            _ = rank.kill();
            _ = rank.wait();
        }
    }
}

#[derive(Serialize)]
struct Report {
    engine: &'static str,
    world: usize,
    bytes: usize,
    wire: &'static str,
    route: &'static str,
    rounds: usize,
    median_ms: f64,
    best_ms: f64,
    /// What each rank sends and receives, over the median time.
    line_mbit_per_s: f64,
    verified: bool,
}

fn measure(args: &BenchCommArgs) -> anyhow::Result<()> {
    let secret = secret()?.map(Secret::Given).unwrap_or_default();
    let options = Options { join: Duration::from_secs(60), secret, encrypt: args.encrypt, ..Options::default() };
    let identity = Identity::new().with("command", "bench comm");
    let mut group = Group::join(&args.place.find()?, &identity, &options)?;
    let speaks = group.rank() == 0;
    if speaks && !args.json {
        print_line("world       MB  wire  route   median ms    best ms   Mbit/s per rank and direction");
    }
    for &megabytes in &args.mb {
        let floats = (megabytes * 1e6 / 4.0) as usize;
        for &wire in &args.wire {
            for &route in &args.route {
                let report = time(&mut group, args, floats, wire, route)?;
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
    floats: usize,
    wire: WireArg,
    route: RouteArg,
) -> anyhow::Result<Report> {
    let (rank, world) = (group.rank(), group.world());
    let shards = match args.own.len() {
        0 => Shards::even(floats, world),
        count if count == world => Shards::weighted(floats, &args.own),
        count => return Err(UsageError(format!("--own has {count} weights for {world} ranks")).into()),
    };
    let (on_wire, bytes_each) = match wire {
        WireArg::F32 => (Wire::F32, 4),
        WireArg::Bf16 => (Wire::Bf16 { exact_tail: 0 }, 2),
    };
    let route_of = match route {
        RouteArg::Auto => Route::Auto,
        RouteArg::Direct => Route::Direct,
        RouteArg::Ring => Route::Ring,
    };
    let mut data = vec![0.0f32; floats];
    let mut seconds = Vec::new();
    let mut said = Instant::now();
    for round in 0..=args.rounds as usize {
        fill(&mut data, rank + 1 + round);
        group.barrier()?;
        let start = Instant::now();
        group.all_reduce(&mut data, &shards, on_wire, route_of)?;
        // The first is for page faults and TCP's windows.
        if round > 0 {
            seconds.push(start.elapsed().as_secs_f64());
        }
        verify(&data, (1..=world).map(|rank| rank + round).sum())?;
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
        wire: wire.name(),
        route: route.name(),
        rounds: args.rounds as usize,
        median_ms: 1e3 * median,
        best_ms: 1e3 * best,
        line_mbit_per_s: 8e-6 * sent / median,
        verified: true,
    })
}

/// Small whole numbers: their sums are exact in f32 and for up to a hundred ranks close to it in bf16.
fn fill(data: &mut [f32], factor: usize) {
    for (at, value) in data.iter_mut().enumerate() {
        *value = (factor * (at % 7 + 1)) as f32;
    }
}

/// In bf16 each of the sum's parts and the sum itself were rounded to 8 bits.
fn verify(data: &[f32], factor: usize) -> anyhow::Result<()> {
    for (at, value) in data.iter().enumerate() {
        let expected = (factor * (at % 7 + 1)) as f32;
        if (value - expected).abs() > expected / 128.0 {
            bail!("the sum is wrong at {at}: {value} instead of {expected}");
        }
    }
    Ok(())
}
