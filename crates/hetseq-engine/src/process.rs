//! The process of an engine: starts it with one end of a socket as its standard input, logs what it
//! prints, and ends it. It runs in its own process group, so that Ctrl-C reaches only this process,
//! and exits by itself when the socket closes.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::EngineError;

/// Lines of output that an error message repeats.
const KEPT_LINES: usize = 8;
const MAX_LINE: u64 = 64 << 10;
/// How long an engine may take to exit after its socket has closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// How to start an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineCommand {
    /// The name in the log: that of its device.
    pub name: String,
    pub program: OsString,
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
}

impl EngineCommand {
    pub(crate) fn command(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.arguments);
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}

pub(crate) struct EngineProcess {
    child: Child,
    last_lines: Arc<Mutex<VecDeque<String>>>,
}

impl EngineProcess {
    /// Returns the process and this end of its socket.
    pub(crate) fn start(launch: &EngineCommand) -> Result<(Self, UnixStream), EngineError> {
        let failed = |reason: std::io::Error| {
            let reason = reason.to_string();
            EngineError::Start { command: launch.command(), reason }
        };
        let (socket, theirs) = UnixStream::pair().map_err(failed)?;
        let (output, theirs_out) = std::io::pipe().map_err(failed)?;
        let mut command = Command::new(&launch.program);
        command
            .args(&launch.arguments)
            .envs(launch.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(theirs_out.try_clone().map_err(failed)?)
            .stderr(theirs_out)
            .process_group(0);
        let child = command.spawn().map_err(failed)?;
        let last_lines = Arc::new(Mutex::new(VecDeque::new()));
        let (name, lines) = (launch.name.clone(), last_lines.clone());
        // Ends with the last process that has the pipe, which may outlive the engine.
        std::thread::Builder::new()
            .name(format!("{name} output"))
            .spawn(move || log_lines(&name, BufReader::new(output), &lines))
            .map_err(failed)?;
        Ok((EngineProcess { child, last_lines }, socket))
    }

    /// How the process ended, if it did so within `limit`.
    pub(crate) fn status(&mut self, limit: Duration) -> Option<String> {
        let started = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(format!(" ({status})")),
                Ok(None) if started.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// The last lines that it printed, for an error message.
    pub(crate) fn output(&self) -> String {
        let lines = self.last_lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_empty() {
            return String::new();
        }
        format!("; it printed last: {}", lines.iter().cloned().collect::<Vec<_>>().join(" | "))
    }

    pub(crate) fn kill(&mut self) {
        // It may have ended already.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Drop for EngineProcess {
    /// The socket is closed already, see [`crate::Engine`].
    fn drop(&mut self) {
        if self.status(EXIT_TIMEOUT).is_none() {
            self.kill();
        }
    }
}

fn log_lines(name: &str, mut output: impl BufRead, last_lines: &Mutex<VecDeque<String>>) {
    let mut line = Vec::new();
    // A longer line is logged in pieces.
    while matches!(output.by_ref().take(MAX_LINE).read_until(b'\n', &mut line), Ok(read) if read > 0) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if text.is_empty() {
            continue;
        }
        tracing::info!("{name}: {text}");
        let mut lines = last_lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(text);
    }
}
