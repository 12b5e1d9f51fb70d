//! A custom task trains on two ranks like on one: the losses are equal, and it learns the curve.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions only, not in their helpers

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn start(dir: &Path, rank: usize, world: usize, port: u16) -> Child {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("curve.toml");
    Command::new(env!("CARGO_BIN_EXE_custom-task"))
        .arg("train")
        .arg(config)
        .args(["--set", &format!("run.dir={:?}", dir.display().to_string()), "--set", "run.devices=cpu:1"])
        .envs([("RANK", rank.to_string()), ("WORLD_SIZE", world.to_string()), ("MASTER_PORT", port.to_string())])
        .env("MASTER_ADDR", "127.0.0.1")
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The losses of a run with `world` ranks.
fn losses(dir: &Path, world: usize) -> Vec<f64> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut ranks: Vec<Child> = (0..world).map(|rank| start(dir, rank, world, port)).collect();
    let deadline = Instant::now() + Duration::from_secs(120);
    for rank in &mut ranks {
        let status = loop {
            if let Some(status) = rank.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                rank.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{status}");
    }
    let text = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let loss = |line: &str| line.split("\"loss\":").nth(1)?.split([',', '}']).next()?.parse().ok();
    text.lines().filter(|line| line.contains("\"event\":\"update\"")).filter_map(loss).collect()
}

#[test]
fn two_ranks_train_like_one() {
    let dir = tempfile::tempdir().unwrap();
    let one = losses(&dir.path().join("one"), 1);
    let two = losses(&dir.path().join("two"), 2);
    assert_eq!((one.len(), two.len()), (800, 800));
    assert!(one[0] > 0.5 && one[799] < 0.03, "from {} to {}", one[0], one[799]);
    for (update, (a, b)) in one.iter().zip(&two).enumerate().take(100) {
        assert!((a - b).abs() <= 1e-4 * a.abs(), "update {}: {a} and {b}", update + 1);
    }
}
