//! Starts the real binary, once per rank, and waits for it. Every wait has a timeout, and no
//! process outlives its test.

use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fs_err as fs;
use tempfile::TempDir;

use crate::data::{digits, scratch};
use crate::run_dir::RunDir;

pub(crate) const MNIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/mnist.toml");

/// For commands that take a few seconds on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(5);

/// A command to start: the same on every rank, plus arguments and variables of single ranks.
#[derive(Clone)]
pub(crate) struct Job {
    args: Vec<OsString>,
    ranks: Vec<Rank>,
    port: u16,
    rendezvous_dir: Option<PathBuf>,
    cwd: Option<PathBuf>,
    /// A program with arguments that runs the binary, for example one that sets limits first.
    wrapper: Vec<String>,
    timeout: Duration,
}

#[derive(Clone, Default)]
struct Rank {
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Job {
    pub(crate) fn new<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        let wrapper = Vec::new();
        let ranks = vec![Rank::default()];
        Job { args, ranks, port: free_port(), rendezvous_dir: None, cwd: None, wrapper, timeout: TIMEOUT }
    }

    /// `hetseq COMMAND configs/mnist.toml` on the drawn digits, with one device per rank.
    pub(crate) fn mnist(command: &str, dir: &Path) -> Self {
        let job = Job::new([command, MNIST]).set("run.devices", "cpu:1");
        job.set("task.data", digits().display()).set("run.dir", dir.display())
    }

    /// `hetseq train` of a config in the directory of its data.
    pub(crate) fn train(config: &str, data: &Path, dir: &RunDir, updates: u64) -> Self {
        let job = Job::new(["train", config]).in_dir(data);
        job.set("run.dir", dir.path().display()).set("run.max_updates", updates)
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(self, args: impl IntoIterator<Item = A>) -> Self {
        args.into_iter().fold(self, Job::arg)
    }

    pub(crate) fn set(self, key: &str, value: impl std::fmt::Display) -> Self {
        self.arg("--set").arg(format!("{key}={value}"))
    }

    pub(crate) fn ranks(mut self, world: usize) -> Self {
        self.ranks = vec![Rank::default(); world];
        self
    }

    pub(crate) fn weights(mut self, weights: &[u32]) -> Self {
        let rank = |weight: &u32| Rank { args: vec!["--weight".to_owned(), weight.to_string()], env: Vec::new() };
        self.ranks = weights.iter().map(rank).collect();
        self.set("batch.split", "weights")
    }

    /// The ranks use a directory for the rendezvous, and get no rank numbers.
    pub(crate) fn rendezvous_in(mut self, dir: &Path) -> Self {
        self.rendezvous_dir = Some(dir.to_owned());
        self
    }

    /// The port of rank 0.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Sets the timeout of a job that takes longer than usual.
    pub(crate) fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    pub(crate) fn in_dir(mut self, cwd: &Path) -> Self {
        self.cwd = Some(cwd.to_owned());
        self
    }

    /// Runs the binary by another program, such as a shell that sets limits.
    pub(crate) fn under(mut self, program: &[&str]) -> Self {
        self.wrapper = program.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// The same ranks, started together by `mpirun`, which is then the only process of the job.
    #[cfg(feature = "mpi")]
    pub(crate) fn under_mpirun(&self) -> Self {
        let of_rank = |rank: &Rank| -> Vec<OsString> {
            self.args.iter().cloned().chain(rank.args.iter().map(OsString::from)).collect()
        };
        let [first, others @ ..] = &self.ranks[..] else { panic!("a job without ranks") };
        let next = [":", "-n", "1", env!("CARGO_BIN_EXE_hetseq")];
        let others = others.iter().flat_map(|rank| next.iter().map(OsString::from).chain(of_rank(rank)));
        let args = of_rank(first).into_iter().chain(others).collect();
        // As many ranks as there are, on any machine, also by root in a container.
        let mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "1"];
        let job = Job { args, ranks: vec![Rank::default()], ..self.clone() };
        job.under(&mpirun).env_on(0, "PATH", "/usr/local/bin:/usr/bin:/bin")
    }

    pub(crate) fn arg_on(mut self, rank: usize, arg: &str) -> Self {
        self.ranks[rank].args.push(arg.to_owned());
        self
    }

    /// Sets a config key only on `rank`.
    pub(crate) fn set_on(mut self, rank: usize, key: &str, value: &str) -> Self {
        self.ranks[rank].args.extend(["--set".to_owned(), format!("{key}={value}")]);
        self
    }

    pub(crate) fn env_on(mut self, rank: usize, name: &str, value: &str) -> Self {
        self.ranks[rank].env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts all ranks.
    pub(crate) fn start(&self) -> Cluster {
        self.start_ranks(0..self.ranks.len())
    }

    /// Starts only these ranks, in this order.
    pub(crate) fn start_ranks(&self, ranks: impl IntoIterator<Item = usize>) -> Cluster {
        let mut cluster = Cluster::new();
        ranks.into_iter().for_each(|rank| self.start_rank(rank, &mut cluster));
        cluster
    }

    /// Starts a single rank whose standard error goes to `stderr` instead of a log file.
    pub(crate) fn start_with_stderr(&self, stderr: impl Into<Stdio>) -> Cluster {
        let mut cluster = Cluster::new();
        let mut command = self.command(0, &cluster);
        cluster.members.push(command.stderr(stderr).spawn().unwrap());
        cluster
    }

    /// Starts one more process in `cluster`.
    pub(crate) fn start_rank(&self, rank: usize, cluster: &mut Cluster) {
        let child = self.command(rank, cluster).spawn().unwrap();
        cluster.members.push(child);
    }

    fn command(&self, rank: usize, cluster: &Cluster) -> Command {
        let words: Vec<&str> = self.wrapper.iter().map(String::as_str).chain([env!("CARGO_BIN_EXE_hetseq")]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        // The ranks must not see variables of a scheduler or of the developer's shell.
        command.env_clear().args(&self.args).args(&self.ranks[rank].args);
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        if let Some(dir) = &self.rendezvous_dir {
            command.arg("--distributed-init-method").arg(format!("file://{}", dir.display()));
            command.arg("--distributed-world-size").arg(self.ranks.len().to_string());
        } else if self.ranks.len() > 1 {
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", self.ranks.len().to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", self.port.to_string());
        }
        command.envs(self.ranks[rank].env.clone());
        let member = cluster.members.len();
        let log = |stream| fs::File::create(cluster.log(member, stream)).unwrap().into_parts().0;
        command.stdin(Stdio::null()).stdout(log("out")).stderr(log("err"));
        command
    }

    /// Starts all ranks and waits until they end.
    pub(crate) fn run(&self) -> Vec<Ended> {
        self.start().wait(self.timeout)
    }

    /// Starts all ranks, requires exit code 0 of each, and returns the standard output of rank 0.
    pub(crate) fn succeed(&self) -> String {
        let ended = self.run();
        assert!(ended.iter().all(|rank| rank.code() == Some(0)), "{ended:#?}");
        ended.into_iter().next().unwrap().stdout
    }
}

/// Running processes.
pub(crate) struct Cluster {
    members: Vec<Child>,
    logs: TempDir,
}

/// A process that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// The exit code; `None` if a signal ended the process.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

pub(crate) fn codes(ended: &[Ended]) -> Vec<Option<i32>> {
    ended.iter().map(Ended::code).collect()
}

impl Cluster {
    fn new() -> Self {
        Cluster { members: Vec::new(), logs: TempDir::new_in(scratch()).unwrap() }
    }

    /// Waits until all processes have ended.
    pub(crate) fn wait(mut self, timeout: Duration) -> Vec<Ended> {
        let all = self.members.len();
        self.wait_for(all, timeout).into_iter().map(|(_, ended)| ended).collect()
    }

    /// Waits until `count` processes have ended, and returns all that have.
    pub(crate) fn wait_for(&mut self, count: usize, timeout: Duration) -> Vec<(usize, Ended)> {
        let ended = self.poll(&format!("{count} processes to end"), timeout, |cluster| {
            let running = cluster.running();
            let ended: Vec<usize> = (0..cluster.members.len()).filter(|member| !running.contains(member)).collect();
            (ended.len() >= count).then_some(ended)
        });
        ended.into_iter().map(|member| (member, self.ended(member))).collect()
    }

    /// Waits until a process has printed `text` to standard error.
    pub(crate) fn wait_for_message(&mut self, text: &str) {
        self.poll(text, TIMEOUT, |cluster| cluster.output().contains(text).then_some(()));
    }

    /// Waits until the run in `dir` has completed `update`. All processes must still run.
    pub(crate) fn wait_for_update(&mut self, dir: &RunDir, update: u64) {
        self.poll(&format!("update {update}"), TIMEOUT, |cluster| {
            assert_eq!(cluster.running().len(), cluster.members.len(), "ended too early:\n{}", cluster.output());
            dir.losses().contains_key(&update).then_some(())
        });
    }

    /// Waits until `condition` holds. All processes must still run.
    pub(crate) fn wait_until(&mut self, what: &str, condition: impl Fn() -> bool) {
        self.poll(what, TIMEOUT, |cluster| {
            assert_eq!(cluster.running().len(), cluster.members.len(), "ended too early:\n{}", cluster.output());
            condition().then_some(())
        });
    }

    /// Waits until `condition` holds. Processes may have ended.
    pub(crate) fn wait_until_after_losses(&mut self, what: &str, condition: impl Fn() -> bool) {
        self.poll(what, TIMEOUT, |_| condition().then_some(()));
    }

    /// Sends a signal, given by name, to a process.
    pub(crate) fn signal(&self, member: usize, signal: &str) {
        send(signal, self.members[member].id());
    }

    /// The child processes of a process.
    pub(crate) fn children(&self, member: usize) -> Vec<u32> {
        let pid = self.members[member].id();
        let pids = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    /// The child processes of a process that any of its threads started, the oldest first.
    pub(crate) fn all_children(&self, member: usize) -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.members[member].id())).unwrap();
        let of_thread = |task: std::path::PathBuf| fs::read_to_string(task.join("children")).unwrap_or_default();
        let lists: Vec<String> = tasks.map(|task| of_thread(task.unwrap().path())).collect();
        let mut pids: Vec<u32> =
            lists.iter().flat_map(|list| list.split_whitespace()).map(|pid| pid.parse().unwrap()).collect();
        pids.sort_unstable();
        pids
    }

    /// Kills all processes with `kill -9`.
    pub(crate) fn kill(mut self) {
        self.members.iter_mut().for_each(|member| member.kill().unwrap());
        for ended in self.wait(TIMEOUT) {
            assert_eq!(ended.status.signal(), Some(9), "{ended:#?}");
        }
    }

    fn poll<T>(&mut self, what: &str, timeout: Duration, mut ready: impl FnMut(&mut Self) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = ready(self) {
                return found;
            }
            assert!(started.elapsed() < timeout, "waited {timeout:?} for {what}:\n{}", self.output());
            sleep(POLL);
        }
    }

    fn running(&mut self) -> Vec<usize> {
        let members = self.members.iter_mut().enumerate();
        members.filter_map(|(index, member)| member.try_wait().unwrap().is_none().then_some(index)).collect()
    }

    fn ended(&mut self, member: usize) -> Ended {
        let status = self.members[member].wait().unwrap();
        let read = |stream| fs::read_to_string(self.log(member, stream)).unwrap();
        Ended { status, stdout: read("out"), stderr: read("err") }
    }

    fn log(&self, member: usize, stream: &str) -> std::path::PathBuf {
        self.logs.path().join(format!("{member}.{stream}"))
    }

    /// The standard error of all processes so far.
    pub(crate) fn output(&self) -> String {
        let read = |member| fs::read_to_string(self.log(member, "err")).unwrap_or_default();
        (0..self.members.len()).map(|member| format!("process {member}:\n{}\n", read(member))).collect()
    }
}

/// Sends a signal, given by name. Through `sh`, because the system call is unsafe in Rust.
pub(crate) fn send(signal: &str, pid: u32) {
    let sent = Command::new("sh").arg("-c").arg(format!("kill -s {signal} {pid}")).status().unwrap();
    assert!(sent.success(), "signalling {pid}");
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            // The process has already ended, unless the test failed.
            _ = member.kill();
            _ = member.wait();
        }
    }
}

/// A free port below the range of outgoing connections, so that no other program takes it before
/// rank 0 binds it.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let offset = std::process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let port = 10_000 + offset as u16;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}
