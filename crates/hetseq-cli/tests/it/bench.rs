//! `hetseq bench step`. The tests do not check how fast it is.

use serde_json::Value;

use crate::cluster::Job;

fn number(report: &Value, key: &str) -> f64 {
    report[key].as_f64().unwrap_or_else(|| panic!("{key} in {report}"))
}

#[test]
fn a_geometry_is_timed_without_data() {
    let job = Job::new(["bench", "step", "--config", "tiny", "--threads", "2", "--json"]);
    let printed = job.arg("--steps").arg("4").arg("--rounds").arg("2").succeed();
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 1, "{printed}");
    let report: Value = serde_json::from_str(lines[0]).unwrap();
    assert_eq!((&report["config"], &report["run_devices"]), (&"tiny".into(), &"cpu:2".into()));
    assert_eq!((number(&report, "batch"), number(&report, "devices"), number(&report, "threads")), (4.0, 2.0, 2.0));
    // Embeddings (512 words, 512 positions, 2 segments, a norm), two layers, pooler and heads, all
    // of width 64.
    let (width, layer) = (64, 12 * 64 * 64 + 13 * 64);
    let expected =
        (512 + 512 + 2 + 2) * width + 2 * layer + 2 * (width * width + width) + 2 * width + 512 + 2 * width + 2;
    assert_eq!(number(&report, "parameters") as usize, expected);
    assert!(number(&report, "best_ms") > 0.0 && number(&report, "best_ms") <= number(&report, "step_ms"), "{report}");
    let tokens = 4.0 * 32.0 / (number(&report, "step_ms") * 1e-3);
    assert!((number(&report, "tokens_per_s") / tokens - 1.0).abs() < 1e-9, "{report}");
    assert!((1.0..10_000.0).contains(&number(&report, "peak_rss_mb")), "{report}");
}

#[test]
fn the_batch_can_be_set() {
    let job =
        Job::new(["bench", "step", "--config", "tiny", "--devices", "cpu:1", "--devices", "cpu:3", "--batch", "2"]);
    let printed = job.arg("--steps").arg("1").arg("--rounds").arg("1").arg("--json").succeed();
    let reports: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 2);
    // The third device has nothing to do.
    assert_eq!((number(&reports[1], "devices"), number(&reports[1], "batch")), (3.0, 2.0));
}

#[test]
fn invalid_arguments_are_refused() {
    let wrong: [(&[&str], &str); 5] = [
        (&["--config", "huge"], "tiny, small, base2, base"),
        (&["--config", "tiny", "run.toml"], "cannot be used with"),
        (&["--config", "tiny", "--set", "run.seed=2"], "cannot be used with"),
        (&["--config", "tiny", "--threads", "2", "--devices", "cpu"], "cannot be used with"),
        (&["--threads", "2"], "--config <NAME>"),
    ];
    for (args, part) in wrong {
        let ended = Job::new(["bench", "step"].iter().chain(args)).run().remove(0);
        assert_eq!(ended.code(), Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{args:?}: {}", ended.stderr);
    }
}
