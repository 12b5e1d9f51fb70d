//! A custom task trains on two ranks like on one, though its file has another path on each: the
//! losses are equal, and it learns the curve. A rank with another file is refused.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions only, not in their helpers

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

fn start(dir: &Path, points: &Path, rank: usize, world: usize, port: u16) -> Child {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("curve.toml");
    let set = |key: &str, path: &Path| format!("{key}={:?}", path.display().to_string());
    Command::new(env!("CARGO_BIN_EXE_custom-task"))
        .arg("train")
        .arg(config)
        .args(["--set", &set("run.dir", dir), "--set", &set("task.points", points), "--set", "run.devices=cpu:1"])
        // Rank 0 waits this long for a rank that is not refused.
        .args(["--set", "comm.join_s=10"])
        .envs([("RANK", rank.to_string()), ("WORLD_SIZE", world.to_string()), ("MASTER_PORT", port.to_string())])
        .env("MASTER_ADDR", "127.0.0.1")
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Runs one rank per file of points to their end.
fn run(dir: &Path, points: &[PathBuf]) -> Vec<ExitStatus> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rank = |(rank, file): (usize, &PathBuf)| start(dir, file, rank, points.len(), port);
    let mut ranks: Vec<Child> = points.iter().enumerate().map(rank).collect();
    let deadline = Instant::now() + Duration::from_secs(120);
    let wait = |rank: &mut Child| loop {
        if let Some(status) = rank.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            rank.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    ranks.iter_mut().map(wait).collect()
}

/// The losses of a run with one rank per file of points.
fn losses(dir: &Path, points: &[PathBuf]) -> Vec<f64> {
    for status in run(dir, points) {
        assert!(status.success(), "{status}");
    }
    let text = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let loss = |line: &str| line.split("\"loss\":").nth(1)?.split([',', '}']).next()?.parse().ok();
    text.lines().filter(|line| line.contains("\"event\":\"update\"")).filter_map(loss).collect()
}

#[test]
fn two_ranks_with_different_paths_train_like_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("points.csv");
    let copy = dir.path().join("elsewhere.csv");
    std::fs::copy(&file, &copy).unwrap();
    let one = losses(&dir.path().join("one"), std::slice::from_ref(&file));
    let two = losses(&dir.path().join("two"), &[file.clone(), copy.clone()]);
    assert_eq!((one.len(), two.len()), (800, 800));
    assert!(one[0] > 0.5 && one[799] < 0.03, "from {} to {}", one[0], one[799]);
    for (update, (a, b)) in one.iter().zip(&two).enumerate().take(100) {
        assert!((a - b).abs() <= 1e-4 * a.abs(), "update {}: {a} and {b}", update + 1);
    }

    std::fs::write(&copy, "0.5,1.0\n0.6,1.0\n").unwrap();
    let refused = run(&dir.path().join("other"), &[file, copy]);
    assert_eq!(refused.iter().map(ExitStatus::code).collect::<Vec<_>>(), [Some(1), Some(2)]);
}
