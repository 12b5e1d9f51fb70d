//! Runs a command of the shell with a deadline, after which it and what it has started are killed.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Whether the command exits with 0.
pub(super) fn succeeds_within(command: &str, limit: Duration) -> Result<bool, String> {
    let mut child = spawn(command, Stdio::null())?;
    wait_within(&mut child, command, limit).map(|status| status.success())
}

/// The standard output of the command, which must be short.
pub(super) fn output_within(command: &str, limit: Duration) -> Result<String, String> {
    let mut child = spawn(command, Stdio::piped())?;
    let status = wait_within(&mut child, command, limit)?;
    if !status.success() {
        return Err(format!("`{command}` failed: {status}"));
    }
    let output = child.wait_with_output().map_err(|error| format!("`{command}`: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn spawn(command: &str, stdout: Stdio) -> Result<Child, String> {
    let mut shell = Command::new("sh");
    // Not in the group of this process: Ctrl-C is not for the command.
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null()).process_group(0);
    shell.spawn().map_err(|error| format!("`{command}` could not be started: {error}"))
}

fn wait_within(child: &mut Child, command: &str, limit: Duration) -> Result<ExitStatus, String> {
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Err(error) => return Err(format!("`{command}`: {error}")),
            Ok(None) if started.elapsed() < limit => std::thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                // The whole group: the shell may have started other processes.
                _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status();
                _ = child.kill();
                _ = child.wait();
                return Err(format!("`{command}` took longer than {} s", limit.as_secs_f64()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn commands_answer_or_are_killed() {
        assert_eq!(succeeds_within("exit 0", LONG), Ok(true));
        assert_eq!(succeeds_within("exit 3", LONG), Ok(false));
        assert_eq!(output_within("echo a; echo b", LONG), Ok("a\nb\n".to_owned()));
        assert!(output_within("exit 1", LONG).unwrap_err().starts_with("`exit 1` failed: "));
        let started = Instant::now();
        let error = succeeds_within("sleep 3600 | sleep 3600", Duration::from_millis(50)).unwrap_err();
        assert_eq!(error, "`sleep 3600 | sleep 3600` took longer than 0.05 s");
        assert!(started.elapsed() < LONG);
    }
}
