//! How much room there is where checkpoints go. Asked once at the start, and when something has failed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A network file system that hangs must not hang whoever asks.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes that can still be written below `dir`, as `df` tells; none if it does not.
pub(crate) fn free_bytes(dir: &Path) -> Option<u64> {
    // A program, because the system call is `unsafe` in Rust, and this is asked too rarely to be worth that.
    let mut command = Command::new("df");
    command.arg("-Pk").arg("--").arg(dir).env("LC_ALL", "C").stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().ok()?;
    let started = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if started.elapsed() > PATIENCE {
            _ = child.kill();
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    available_bytes(&String::from_utf8_lossy(&child.wait_with_output().ok()?.stdout))
}

/// From the table that POSIX prescribes: device, blocks of 1,024 bytes, used, available, per cent, place. Device and place
/// may have blanks in them.
fn available_bytes(table: &str) -> Option<u64> {
    let words: Vec<&str> = table.lines().nth(1)?.split_whitespace().collect();
    let row = words.windows(4).find(|four| {
        four[3].ends_with('%') && four[..3].iter().all(|word| word.bytes().all(|byte| byte.is_ascii_digit()))
    })?;
    row[2].parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_df_prints() {
        let head = "Filesystem     1024-blocks     Used Available Capacity Mounted on\n";
        let rows = [
            ("/dev/sda1        61255492 19212780  38898760      34% /", Some(38_898_760 * 1024)),
            ("//nas/our share 1000 900 0 100% /mnt/our share 7%", Some(0)),
            ("none - - - - /proc", None),
            ("", None),
        ];
        for (row, bytes) in rows {
            assert_eq!(available_bytes(&format!("{head}{row}\n")), bytes, "{row}");
        }
    }

    #[test]
    fn there_is_an_answer_here_and_none_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(dir.path()).is_some());
        assert_eq!(free_bytes(&dir.path().join("nowhere")), None);
    }
}
