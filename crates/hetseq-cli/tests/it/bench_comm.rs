//! `hetseq bench comm`: it reports measurements, refuses invalid arguments, and leaves no process
//! behind.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Job, send};

fn bench(more: &[&str]) -> Job {
    Job::new(["bench", "comm"].iter().chain(more))
}

/// (wire dtype, algorithm that was used) of each report.
fn measured(more: &[&str]) -> Vec<(String, String)> {
    // For the larger vector `auto` chooses the ring.
    let out = bench(&["--world", "3", "--mb", "0.1,5", "--rounds", "2", "--json"]);
    let out = more.iter().fold(out, Job::arg).succeed();
    let report = |line: &str| {
        let report: Value = serde_json::from_str(line).unwrap();
        assert_eq!((report["world"].as_u64(), report["verified"].as_bool()), (Some(3), Some(true)));
        assert!(report["median_ms"].as_f64().unwrap() > 0.0);
        let text = |key: &str| report[key].as_str().unwrap().to_owned();
        (text("wire"), text("route"))
    };
    out.lines().map(report).collect()
}

#[test]
fn sums_are_verified_and_the_algorithm_is_reported() {
    let f32 = ["direct", "direct", "ring", "ring", "direct", "ring"]
        .map(|algorithm| ("f32".to_owned(), algorithm.to_owned()));
    assert_eq!(measured(&["--algorithm", "auto,direct,ring"]), f32);
    let bf16 = [("bf16".to_owned(), "direct".to_owned()), ("bf16".to_owned(), "direct".to_owned())];
    assert_eq!(measured(&["--wire-dtype", "bf16", "--shard-weight", "1,2,0"]), bf16);
}

#[test]
fn invalid_arguments_are_refused_before_a_rank_starts() {
    let elsewhere = ["--distributed-world-size", "2", "--distributed-rank", "0"];
    let elsewhere = [&elsewhere[..], &["--distributed-init-method", "tcp://127.0.0.1:1"]].concat();
    let wrong: [(&[&str], &str); 7] = [
        (&elsewhere, "HETSEQ_SECRET is not set"),
        (&["--world", "1"], "at least two ranks"),
        (&["--distributed-world-size", "1"], "at least two ranks"),
        (&["--world", "2,3", "--shard-weight", "1,1"], "--shard-weight has 2 weights for 3 ranks"),
        (
            &["--wire-dtype", "f32,bf16", "--algorithm", "ring"],
            "--algorithm ring needs --wire-dtype f32 and equal shards",
        ),
        (
            &["--shard-weight", "1,0", "--algorithm", "direct,ring"],
            "--algorithm ring needs --wire-dtype f32 and equal shards",
        ),
        (&["--wire-dtype", "f16"], "[possible values: f32, bf16]"),
    ];
    for (more, part) in wrong {
        let ended = bench(more).run().remove(0);
        assert_eq!(ended.code(), Some(2), "{more:?}: {ended:#?}");
        assert!(ended.stderr.contains(part) && ended.stdout.is_empty(), "{more:?}: {ended:#?}");
    }
}

#[test]
fn no_rank_is_left_behind() {
    for terminate_all in [false, true] {
        let mut cluster = bench(&["--world", "3", "--mb", "20", "--rounds", "100000"]).start();
        // All ranks have joined.
        cluster.wait_for_message("round ");
        let ranks = cluster.children(0);
        assert_eq!(ranks.len(), 3);
        if terminate_all {
            cluster.signal(0, "TERM");
        } else {
            send("KILL", ranks[1]);
        }
        let ended = cluster.wait(Duration::from_secs(60)).remove(0);
        assert_eq!(ended.code(), Some(1), "{ended:#?}");
        assert!(
            ended.stderr.contains(if terminate_all { "terminated" } else { "rank 1: signal: 9" }),
            "{}",
            ended.stderr
        );
        let left: Vec<&u32> = ranks.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect();
        assert!(left.is_empty(), "{left:?} are left of {ranks:?}");
    }
}

/// The old names of flags still work and print a warning.
#[test]
fn renamed_flags_still_work_with_a_warning() {
    let ended =
        bench(&["--world", "2", "--mb", "0.1", "--rounds", "1", "--wire=bf16", "--route", "direct"]).run().remove(0);
    assert_eq!(ended.code(), Some(0), "{ended:#?}");
    for part in ["--wire is now --wire-dtype", "--route is now --algorithm"] {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
}
