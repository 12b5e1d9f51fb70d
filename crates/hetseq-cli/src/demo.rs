//! `hetseq demo`: three processes of different speed train one model on this machine, first evenly split, then by
//! measured speed. Everything printed at the end is read from the run's `metrics.jsonl`.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hetseq_metrics::sink::worker_table;
use hetseq_metrics::{Event, WorkerReport, median};

use crate::args::{DemoArgs, UsageError};
use crate::output::{print_line, say};
use crate::prep::write_digits;
use crate::stopped;

const EVEN_UPDATES: u64 = 40;
const UPDATES: u64 = 200;
/// Updates after a change of split that are left out of the medians: the first are not yet at their pace.
const SETTLING: u64 = 8;

pub(crate) fn demo(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    if args.slowdown.is_empty() || args.slowdown.iter().any(|factor| !(1.0..=100.0).contains(factor)) {
        return Err(UsageError("--slowdown: say factors from 1 to 100, such as 1,2,4".to_owned()).into());
    }
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => std::env::temp_dir().join(format!("hetseq-demo-{}", std::process::id())),
    };
    fs_err::create_dir_all(&dir)?;
    let world = args.slowdown.len();
    say(&format!("drawing 8,000 digits in {}", dir.display()));
    write_digits(&dir.join("data"), 7000, 1000, 1)?;
    let config = write_config(&dir, &args.slowdown)?;
    say(&format!(
        "starting {world} workers, {} times as slow as this machine: {EVEN_UPDATES} updates split evenly, then by speed",
        args.slowdown.iter().map(f64::to_string).collect::<Vec<_>>().join(", ")
    ));
    // Ctrl-C reaches the workers too; they save and leave, and this process waits for them. SIGTERM comes here alone.
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::default())?;
    let terminated = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, terminated.clone())?;
    let mut workers = Workers::start(&dir, &config, world)?;
    let codes = workers.wait(Duration::from_secs(600), &terminated)?;
    if codes.contains(&Some(75)) {
        say(&format!("stopped; go on with: hetseq train {}", config.display()));
        return Ok(stopped());
    }
    if codes.iter().any(|code| *code != Some(0)) {
        bail!("a worker failed (exit codes {codes:?}); see {}", dir.join("logs").display());
    }
    report(&dir)?;
    Ok(ExitCode::SUCCESS)
}

fn write_config(dir: &Path, slowdown: &[f64]) -> anyhow::Result<PathBuf> {
    let path = dir.join("demo.toml");
    let (data, run) = (dir.join("data").display().to_string(), dir.join("run").display().to_string());
    let text = format!(
        "# One model, workers of different speed. Try: hetseq eval demo.toml\n\
         [run]\ntask = \"images\"\ndir = {run:?}\nmax_updates = {UPDATES}\ndevices = \"cpu:1\"\nlog_every = 20\n\n\
         [task]\ndata = {data:?}\ndropout = 0.25\n\n\
         [batch]\nglobal = 504\nsplit = \"measured\"\neven_updates = {EVEN_UPDATES}\n\n\
         [optim]\nname = \"adam\"\nlr = 0.001\nclip_norm = 5.0\nschedule = {{ kind = \"cosine\", warmup_updates = 10 }}\n\n\
         [checkpoint]\nevery = \"100 updates\"\nbest = \"accuracy\"\n\n\
         [comm]\njoin_s = 30.0\n\n[emulate]\nslowdown = {slowdown:?}\n"
    );
    fs_err::write(&path, text)?;
    Ok(path)
}

/// The ranks of the demo; those that still run are ended when this is dropped.
struct Workers(Vec<Child>);

impl Workers {
    /// Rank 0 shows its progress here; the others write to log files.
    fn start(dir: &Path, config: &Path, world: usize) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        // Freed again before rank 0 binds it; a clash is unlikely and would be a clear error.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        fs_err::create_dir_all(dir.join("logs"))?;
        let mut workers = Workers(Vec::new());
        for rank in 0..world {
            let mut command = Command::new(&program);
            command.arg("train").arg(config).args(["--resume", "never"]);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", world.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            command.stdin(Stdio::null());
            if rank > 0 {
                let log = fs_err::File::create(dir.join(format!("logs/rank-{rank}.log")))?.into_parts().0;
                command.stdout(log.try_clone()?).stderr(log);
            }
            workers.0.push(command.spawn().context("starting a worker")?);
        }
        Ok(workers)
    }

    /// The exit codes of all workers, which end together: if one fails, the others notice it by themselves.
    fn wait(&mut self, deadline: Duration, terminated: &AtomicBool) -> anyhow::Result<Vec<Option<i32>>> {
        let started = Instant::now();
        loop {
            let statuses = self.0.iter_mut().map(Child::try_wait).collect::<Result<Vec<_>, _>>()?;
            if let Some(statuses) = statuses.into_iter().collect::<Option<Vec<_>>>() {
                return Ok(statuses.iter().map(ExitStatus::code).collect());
            }
            if terminated.load(Ordering::Relaxed) {
                bail!("terminated");
            }
            if started.elapsed() > deadline {
                bail!("the workers did not finish within {} s", deadline.as_secs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            _ = worker.kill();
            _ = worker.wait();
        }
    }
}

fn report(dir: &Path) -> anyhow::Result<()> {
    let text = fs_err::read_to_string(dir.join("run/metrics.jsonl"))?;
    let (mut even, mut measured, mut accuracy) = (Vec::new(), Vec::new(), None);
    let mut workers: Vec<Vec<WorkerReport>> = Vec::new();
    for line in text.lines() {
        let Ok(event) = serde_json::from_str(line) else { continue };
        match event {
            Event::Update { update, seconds, .. } if (SETTLING..=EVEN_UPDATES).contains(&update) => even.push(seconds),
            Event::Update { update, seconds, .. } if update > EVEN_UPDATES + SETTLING => measured.push(seconds),
            Event::Valid { metrics, .. } => accuracy = metrics.get("accuracy").copied(),
            Event::Workers { workers: report, .. } => workers.push(report),
            _ => {}
        }
    }
    let (even, measured) = (median(even), median(measured));
    for (title, table) in ["split evenly", "split by measured speed"].iter().zip(&workers) {
        print_line(&format!("\n{title}:"));
        for line in worker_table(table) {
            print_line(&format!("  {line}"));
        }
    }
    print_line(&format!(
        "\nan update takes {:.0} ms split evenly and {:.0} ms split by speed: {:.2} times as fast",
        1e3 * even,
        1e3 * measured,
        even / measured
    ));
    if let Some(accuracy) = accuracy {
        print_line(&format!("accuracy on digits not seen in training: {:.1} %", 100.0 * accuracy));
    }
    print_line(&format!("the run is in {}", dir.display()));
    Ok(())
}
