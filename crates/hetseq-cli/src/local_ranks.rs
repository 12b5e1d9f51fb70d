//! Starts ranks of this program on this machine and waits for them, for `hetseq demo` and `hetseq
//! bench comm`. No rank outlives this process: those that do not end by themselves are killed.

use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How long the other ranks may take to end by themselves after one has failed or Ctrl-C was
/// pressed. Meanwhile they report why, or save.
const GRACE_PERIOD: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) struct LocalRanks {
    ranks: Vec<Child>,
    /// The ranks receive Ctrl-C too. SIGTERM reaches only this process.
    interrupted: Arc<AtomicBool>,
    terminated: Arc<AtomicBool>,
}

impl LocalRanks {
    /// Starts `world` ranks. `prepare` sets a rank's arguments and output.
    pub(crate) fn start(
        world: usize,
        prepare: impl Fn(usize, &mut Command) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let (interrupted, terminated) = (Arc::default(), Arc::default());
        signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&interrupted))?;
        signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&terminated))?;
        let program = std::env::current_exe().context("finding this program")?;
        // The port is free again before rank 0 binds it. A clash is unlikely and gives a clear
        // error.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut local = LocalRanks { ranks: Vec::new(), interrupted, terminated };
        for rank in 0..world {
            let mut command = Command::new(&program);
            prepare(rank, &mut command)?;
            // Flags, because they take precedence over the environment.
            command.arg("--distributed-init-method").arg(format!("tcp://127.0.0.1:{port}"));
            command.args(["--distributed-world-size", &world.to_string(), "--distributed-rank", &rank.to_string()]);
            local.ranks.push(command.stdin(Stdio::null()).spawn().context("starting a rank")?);
        }
        Ok(local)
    }

    /// Waits for all ranks and returns their exit statuses in rank order. The ranks have timeouts
    /// of their own; `timeout` is for all of them together.
    pub(crate) fn wait(mut self, timeout: Option<Duration>) -> anyhow::Result<Vec<ExitStatus>> {
        let started = Instant::now();
        let mut ending_since: Option<Instant> = None;
        loop {
            let statuses = self.ranks.iter_mut().map(Child::try_wait).collect::<Result<Vec<_>, _>>()?;
            let failed = statuses.iter().flatten().any(|status| !status.success());
            if let Some(statuses) = statuses.into_iter().collect::<Option<Vec<_>>>() {
                return Ok(statuses);
            }
            if self.terminated.load(Ordering::Relaxed) {
                bail!("terminated");
            }
            if failed || self.interrupted.load(Ordering::Relaxed) {
                ending_since.get_or_insert_with(Instant::now);
            }
            if ending_since.is_some_and(|since| since.elapsed() > GRACE_PERIOD) {
                // The statuses of the ranks that ended by themselves show the reason.
                self.kill();
            }
            if let Some(timeout) = timeout.filter(|timeout| started.elapsed() > *timeout) {
                bail!("the ranks did not finish within {} s", timeout.as_secs());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn kill(&mut self) {
        for rank in &mut self.ranks {
            _ = rank.kill();
            _ = rank.wait();
        }
    }
}

impl Drop for LocalRanks {
    fn drop(&mut self) {
        self.kill();
    }
}
