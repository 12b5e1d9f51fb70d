//! `hetseq bench comm`: it says what it has measured, refuses what cannot be measured, and leaves no process behind.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Job, send};

fn bench(more: &[&str]) -> Job {
    Job::new(["bench", "comm"].iter().chain(more))
}

/// (wire, route that was taken) of each report.
fn measured(more: &[&str]) -> Vec<(String, String)> {
    // The larger one is of those that go round by themselves.
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
fn sums_are_timed_and_verified_with_the_route_they_took() {
    let f32 = ["direct", "direct", "ring", "ring", "direct", "ring"].map(|route| ("f32".to_owned(), route.to_owned()));
    assert_eq!(measured(&["--route", "auto,direct,ring"]), f32);
    let bf16 = [("bf16".to_owned(), "direct".to_owned()), ("bf16".to_owned(), "direct".to_owned())];
    assert_eq!(measured(&["--wire", "bf16", "--own", "1,2,0"]), bf16);
}

#[test]
fn what_cannot_be_measured_is_refused_before_anybody_starts() {
    let elsewhere = ["--distributed-world-size", "2", "--distributed-rank", "0"];
    let elsewhere = [&elsewhere[..], &["--distributed-init-method", "tcp://127.0.0.1:1"]].concat();
    let wrong: [(&[&str], &str); 7] = [
        (&elsewhere, "HETSEQ_SECRET is not set"),
        (&["--world", "1"], "at least two ranks"),
        (&["--distributed-world-size", "1"], "at least two ranks"),
        (&["--world", "2,3", "--own", "1,1"], "--own has 2 weights for 3 ranks"),
        (&["--wire", "f32,bf16", "--route", "ring"], "--route ring is for --wire f32 and even shares"),
        (&["--own", "1,0", "--route", "direct,ring"], "--route ring is for --wire f32 and even shares"),
        (&["--wire", "f16"], "[possible values: f32, bf16]"),
    ];
    for (more, part) in wrong {
        let ended = bench(more).run().remove(0);
        assert_eq!(ended.code(), Some(2), "{more:?}: {ended:#?}");
        assert!(ended.stderr.contains(part) && ended.stdout.is_empty(), "{more:?}: {ended:#?}");
    }
}

#[test]
fn no_rank_is_left_behind() {
    for whole in [false, true] {
        let mut cluster = bench(&["--world", "3", "--mb", "20", "--rounds", "100000"]).start();
        // All have met.
        cluster.wait_for_words("round ");
        let ranks = cluster.children(0);
        assert_eq!(ranks.len(), 3);
        if whole {
            cluster.signal(0, "TERM");
        } else {
            send("KILL", ranks[1]);
        }
        let ended = cluster.wait(Duration::from_secs(60)).remove(0);
        assert_eq!(ended.code(), Some(1), "{ended:#?}");
        assert!(ended.stderr.contains(if whole { "terminated" } else { "rank 1: signal: 9" }), "{}", ended.stderr);
        let left: Vec<&u32> = ranks.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect();
        assert!(left.is_empty(), "{left:?} are left of {ranks:?}");
    }
}
