//! An engine in NumPy computes what the model in Rust computes: alone, and together with it in one run.
//! Needs a Python with NumPy, whose path is in `HETSEQ_TEST_PYTHON`. `./test` installs one.

#![allow(clippy::unwrap_used, clippy::expect_used)] // clippy.toml allows it in test functions only, not in their helpers

mod engines {
    use std::path::Path;
    use std::process::{Command, Stdio};

    const UPDATES: usize = 50;

    /// The losses of a run on these devices.
    fn losses(dir: &Path, devices: &str) -> Vec<f64> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = |value: String| format!("{value:?}");
        let status = Command::new(env!("CARGO_BIN_EXE_custom-task"))
            .arg("train")
            .arg(root.join("curve.toml"))
            .args(["--set", &format!("run.dir={}", text(dir.display().to_string()))])
            .args(["--set", &format!("task.points={}", text(root.join("points.csv").display().to_string()))])
            .args(["--set", &format!("run.devices={}", text(devices.to_owned()))])
            .args([
                "--set",
                &format!("run.max_updates={UPDATES}"),
                "--set",
                "task.dropout=0.1",
                "--set",
                "batch.split=equal",
            ])
            .stderr(Stdio::inherit())
            .status()
            .unwrap();
        assert!(status.success(), "{devices}: {status}");
        let events = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
        let loss = |line: &str| line.split("\"loss\":").nth(1)?.split([',', '}']).next()?.parse().ok();
        events.lines().filter(|line| line.contains("\"event\":\"update\"")).filter_map(loss).collect()
    }

    #[test]
    #[ignore = "needs HETSEQ_TEST_PYTHON"]
    fn an_engine_in_numpy_trains_like_rust_and_with_it() {
        let python = std::env::var("HETSEQ_TEST_PYTHON").expect("set HETSEQ_TEST_PYTHON to a Python that has NumPy");
        let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../numpy-engine/engine.py");
        let engine = format!("exec:'{python}' '{}'", engine.display());
        let dir = tempfile::tempdir().unwrap();
        let rust = losses(&dir.path().join("rust"), "cpu:1");
        assert_eq!(rust.len(), UPDATES);
        for (name, devices) in [("numpy", engine.clone()), ("both", format!("cpu:1,{engine}"))] {
            let other = losses(&dir.path().join(name), &devices);
            let worst = rust.iter().zip(&other).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            eprintln!("{name}: losses differ by at most {worst:.1e}");
            assert!(other.len() == UPDATES && worst <= 1e-5, "{name}: {worst}");
        }
    }
}
