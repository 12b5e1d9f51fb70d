//! Runs the checks of one device in a child process (`tested_device.rs`) and collects the results. If
//! the process crashes or hangs, the check in progress has failed, and another process continues
//! with the next one.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::checks::{CheckMessage, CheckResult};
use crate::devices::wait;

/// After this many crashes the remaining checks are not run.
const MAX_CRASHES: usize = 3;

/// Runs all checks. `command` makes the command for those from an index on.
pub(super) fn run(
    command: impl Fn(usize) -> std::io::Result<Command>,
    timeout: Duration,
    on_message: &mut dyn FnMut(&CheckMessage),
) {
    let mut first = 0;
    for crash in 1..=MAX_CRASHES {
        let mut step = (first, "starting the test".to_owned());
        let ended = command(first).map_err(|error| error.to_string()).and_then(|command| {
            TestProcess::start(command)?.read(timeout, &mut |message| {
                if let CheckMessage::Begin { step: at, name } = message {
                    step = (*at, name.clone());
                }
                on_message(message);
            })
        });
        let Err(reason) = ended else { return };
        on_message(&CheckMessage::Result(CheckResult::failed(step.1, reason)));
        first = step.0 + 1;
        if crash == MAX_CRASHES {
            let reason = format!("not run: the process that tests the device ended {MAX_CRASHES} times");
            on_message(&CheckMessage::Result(CheckResult::failed("further checks", reason)));
        }
    }
}

/// A child process, killed on drop.
struct TestProcess {
    child: Child,
    lines: Receiver<String>,
    stderr: Option<std::thread::JoinHandle<String>>,
}

impl TestProcess {
    fn start(mut command: Command) -> Result<Self, String> {
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = started.map_err(|error| format!("cannot start a process: {error}"))?;
        let (sender, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        let stderr = child.stderr.take().map(|mut stderr| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                _ = stderr.read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            })
        });
        Ok(TestProcess { child, lines, stderr })
    }

    /// Passes on its messages until it ends. Returns an error if that was too early.
    fn read(mut self, timeout: Duration, on_message: &mut dyn FnMut(&CheckMessage)) -> Result<(), String> {
        loop {
            let line = match self.lines.recv_timeout(timeout) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => return Err(format!("timed out after {} s", timeout.as_secs())),
                Err(RecvTimeoutError::Disconnected) => return Err(self.reason()),
            };
            match serde_json::from_str(&line) {
                Ok(CheckMessage::End) => return Ok(()),
                Ok(message) => on_message(&message),
                // A driver that prints to standard output.
                Err(_) => {}
            }
        }
    }

    /// Why a process that has closed its output ended.
    fn reason(&mut self) -> String {
        let status = wait(&mut self.child);
        let text = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        let last = text.lines().rev().find_map(|line| line.strip_prefix("error: "));
        let crashed = || match status {
            Ok(status) => format!("the process that tests the device crashed ({status})"),
            Err(reason) => reason,
        };
        last.map_or_else(crashed, str::to_owned)
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
