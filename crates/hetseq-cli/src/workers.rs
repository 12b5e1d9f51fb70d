//! Ranks of this program, started on this machine and watched to their end, for `hetseq demo` and `hetseq bench comm`.
//! None of them outlives this process: they end together, or are ended.

use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// When one has failed, or Ctrl-C was pressed, the others end by themselves, and say why, or save. This is how long they
/// may take.
const TO_FOLLOW: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

pub(crate) struct Workers {
    ranks: Vec<Child>,
    /// Ctrl-C reaches the ranks too. SIGTERM comes to this process alone.
    interrupted: Arc<AtomicBool>,
    terminated: Arc<AtomicBool>,
}

impl Workers {
    /// `prepare` says what a rank is to do and where its output goes.
    pub(crate) fn start(
        world: usize,
        prepare: impl Fn(usize, &mut Command) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let (interrupted, terminated) = (Arc::default(), Arc::default());
        signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&interrupted))?;
        signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&terminated))?;
        let program = std::env::current_exe().context("finding this program")?;
        // Freed again before rank 0 binds it; a clash is unlikely and would be a clear error.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut workers = Workers { ranks: Vec::new(), interrupted, terminated };
        for rank in 0..world {
            let mut command = Command::new(&program);
            prepare(rank, &mut command)?;
            // Flags, since those go before whatever is in the environment.
            command.arg("--distributed-init-method").arg(format!("tcp://127.0.0.1:{port}"));
            command.args(["--distributed-world-size", &world.to_string(), "--distributed-rank", &rank.to_string()]);
            workers.ranks.push(command.stdin(Stdio::null()).spawn().context("starting a rank")?);
        }
        Ok(workers)
    }

    /// How all of them ended, in rank order. They have deadlines of their own, so that one is needed here only for the
    /// whole.
    pub(crate) fn wait(mut self, limit: Option<Duration>) -> anyhow::Result<Vec<ExitStatus>> {
        let started = Instant::now();
        let mut last_call: Option<Instant> = None;
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
                last_call.get_or_insert_with(Instant::now);
            }
            if last_call.is_some_and(|since| since.elapsed() > TO_FOLLOW) {
                // Those that are left did not follow; how the others ended says why.
                self.end();
            }
            if let Some(limit) = limit.filter(|limit| started.elapsed() > *limit) {
                bail!("the ranks did not finish within {} s", limit.as_secs());
            }
            std::thread::sleep(POLL);
        }
    }

    fn end(&mut self) {
        for rank in &mut self.ranks {
            _ = rank.kill();
            _ = rank.wait();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.end();
    }
}
