//! Reports computed from lines of `metrics.jsonl`.

use super::*;

/// Lines of `metrics.jsonl`.
fn events(lines: &[String]) -> Vec<Event> {
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn start(world: usize, resumed_at: u64) -> String {
    format!(
        r#"{{"event":"start","version":"0.1.0","task":"bert","seed":1,"world":{world},"devices":{world},"parameters":9,
           "train_samples":9,"valid_samples":9,"updates_per_epoch":9,"total_updates":9,"resumed_at":{resumed_at}}}"#
    )
}

fn update(update: u64, seconds: f64, predicted_s: Option<f64>) -> String {
    let predicted_s = predicted_s.map_or(String::new(), |seconds| format!(r#","predicted_s":{seconds}"#));
    format!(
        r#"{{"event":"update","update":{update},"epoch":1,"loss":1.0,"terms":{{}},"samples":10,"grad_norm":1.0,
           "lr":0.1,"seconds":{seconds},"data_wait_s":0.01{predicted_s}}}"#
    )
}

fn plan(update: u64, predicted_s: f64, gain: Option<f64>) -> String {
    let gain = gain.map_or(String::new(), |gain| format!(r#","before_s":1.0,"gain":{gain}"#));
    format!(r#"{{"event":"plan","update":{update},"predicted_s":{predicted_s}{gain},"samples":[6,4],"factors":[1,1]}}"#)
}

/// Ranks with one device each, given by host and seconds of computing, exchange and waiting.
fn workers<const N: usize>(updates: u64, wall_s: f64, ranks: [(&str, f64, f64, f64); N]) -> String {
    let worker = |(rank, (host, compute_s, _, wait_s)): (usize, &(&str, f64, f64, f64))| {
        let (speed, idle) = (6.0 - 2.0 * rank as f64, wait_s / wall_s);
        format!(
            r#"{{"rank":{rank},"host":"{host}","device":"cpu:0","samples":5,"share":0.5,"samples_per_second":{speed},
               "idle":{idle},"compute_s":{compute_s}}}"#
        )
    };
    let rank = |(rank, (host, compute_s, exchange_s, wait_s)): (usize, &(&str, f64, f64, f64))| {
        format!(
            r#"{{"rank":{rank},"host":"{host}","compute_s":{compute_s},"data_s":0,"exchange_s":{exchange_s},
               "wait_s":{wait_s},"host_s":0}}"#
        )
    };
    let list = |items: Vec<String>| items.join(",");
    format!(
        r#"{{"event":"workers","update":{updates},"updates":{updates},"wall_s":{wall_s},"workers":[{}],"ranks":[{}]}}"#,
        list(ranks.iter().enumerate().map(worker).collect()),
        list(ranks.iter().enumerate().map(rank).collect())
    )
}

fn end(outcome: &str, seconds: f64) -> String {
    format!(r#"{{"event":"end","update":9,"outcome":"{outcome}","seconds":{seconds}}}"#)
}

fn lost(update: u64, rank: usize, host: &str) -> String {
    format!(r#"{{"event":"lost","update":{update},"rank":{rank},"host":"{host}","reason":"it is gone"}}"#)
}

fn lead(update: u64, host: &str) -> String {
    format!(r#"{{"event":"lead","update":{update},"host":"{host}","total_updates":9}}"#)
}

fn regrouped(update: u64, regroups: u64, world: usize, seconds: f64) -> String {
    format!(
        r#"{{"event":"regrouped","update":{update},"regroups":{regroups},"world":{world},"devices":{world},
           "seconds":{seconds},"interrupted_s":1.0}}"#
    )
}

/// (rank, host, seconds of computing, seconds of its updates) of each rank.
fn ranks(report: &Report) -> Vec<(usize, &str, f64, f64)> {
    let rank = |rank: &RankSummary| (rank.seconds.rank, rank.seconds.compute_s, rank.wall_s);
    let hosts = report.ranks.iter().map(|rank| rank.seconds.host.as_str());
    report
        .ranks
        .iter()
        .map(rank)
        .zip(hosts)
        .map(|((rank, compute_s, wall_s), host)| (rank, host, compute_s, wall_s))
        .collect()
}

fn report(lines: &[String]) -> Report {
    Report::new(events(lines), Settings::default()).unwrap()
}

#[test]
fn updates_time_and_predictions() {
    let mut lines = vec![start(2, 0), plan(1, 0.9, None)];
    lines.extend((1..=4).map(|at| update(at, 1.0, Some(0.9))));
    lines.push(plan(5, 0.5, Some(0.4)));
    lines.extend((5..=7).map(|at| update(at, 0.5, Some(0.51))));
    let valid = r#"{"event":"valid","update":7,"epoch":1,"loss":1.0,"terms":{},"samples":5,"seconds":0.4}"#;
    let saved = r#"{"event":"checkpoint","update":7,"path":"x","best":true,"seconds":9,"paused_seconds":0.1}"#;
    lines.extend([valid.to_owned(), saved.to_owned(), end("finished", 7.0)]);
    let report = report(&lines);
    assert_eq!((report.updates, report.samples, report.process_groups), (7, 70, 1));
    assert_eq!((report.task.as_str(), report.outcome.as_deref(), report.world), ("bert", Some("finished"), 2));
    let TimeSpent { wall_s, updates_s, validation_s, checkpoints_s, other_s, .. } = report.spent;
    assert_eq!((wall_s, updates_s, validation_s, checkpoints_s), (7.0, 5.5, 0.4, 0.1));
    assert!((other_s - 1.0).abs() < 1e-9);
    let fit = report.prediction.unwrap();
    assert_eq!((fit.updates, fit.measured_s, fit.predicted_s), (7, 1.0, 0.9));
    assert!((fit.error - 0.1).abs() < 1e-9);
    let fit = report.prediction_of_last_plan.unwrap();
    assert_eq!((fit.updates, fit.measured_s, fit.predicted_s), (3, 0.5, 0.51));
    assert!((fit.error - 0.02).abs() < 1e-9);
    assert_eq!(report.plans.len(), 2);
    assert_eq!((report.plans[1].gain, report.plans[1].lost_s), (Some(0.4), 0.0));
}

#[test]
fn a_disturbance_costs_time_until_the_next_plan() {
    let mut lines = vec![start(2, 0), plan(1, 1.0, None)];
    // Update 2 is slow alone. The plan from update 8 reacts to 5 to 7; it is emitted before 7 is
    // done.
    for (at, seconds) in [(1, 1.0), (2, 1.5), (3, 1.0), (4, 1.1), (5, 2.0), (6, 2.0)] {
        lines.push(update(at, seconds, Some(1.0)));
    }
    lines.push(plan(8, 1.2, Some(0.3)));
    lines.push(update(7, 2.0, Some(1.0)));
    lines.push(update(8, 1.2, Some(1.2)));
    // Nothing is counted twice.
    lines.push(plan(9, 1.1, Some(0.1)));
    lines.push(update(9, 1.1, Some(1.1)));
    let report = report(&lines);
    let lost: Vec<f64> = report.plans.iter().map(|plan| plan.lost_s).collect();
    assert_eq!(lost, [0.0, 3.0, 0.0]);
    assert!(lost.iter().all(|lost| lost.is_sign_positive()));
    assert_eq!(report.spent.lost_until_replanned_s, 3.0);
}

#[test]
fn the_last_totals_of_each_group_of_a_resumed_run_are_added_up() {
    let lines = [
        start(2, 0),
        update(1, 2.0, None),
        workers(1, 2.0, [("a", 1.0, 0.5, 0.5), ("b", 1.5, 0.5, 0.0)]),
        update(2, 2.0, None),
        workers(2, 4.0, [("a", 2.0, 1.0, 1.0), ("b", 3.0, 1.0, 0.0)]),
        end("stopped", 5.0),
        start(2, 2),
        update(3, 2.0, None),
        workers(1, 2.0, [("a", 1.0, 0.5, 0.0), ("c", 1.5, 0.5, 0.0)]),
        end("finished", 2.0),
    ];
    let report = report(&lines);
    assert_eq!((report.updates, report.process_groups, report.outcome.as_deref()), (3, 2, Some("finished")));
    assert_eq!(report.spent.wall_s, 7.0);
    let hosts: Vec<(usize, &str, f64)> =
        report.ranks.iter().map(|rank| (rank.seconds.rank, rank.seconds.host.as_str(), rank.wall_s)).collect();
    assert_eq!(hosts, [(0, "a", 6.0), (1, "b", 4.0), (1, "c", 2.0)]);
    assert_eq!((report.ranks[0].seconds.compute_s, report.ranks[0].other_s), (3.0, 0.5));
    // 3 s of 6 samples a second, 3 s and 1.5 s of 4.
    let worker = &report.workers[0];
    assert_eq!((worker.share, worker.samples_per_second, worker.computing), (0.5, 6.0, 0.5));
    assert!((worker.idle - 1.0 / 6.0).abs() < 1e-9);
    assert_eq!(report.missing.len(), 1, "{:?}", report.missing);
}

#[test]
fn the_report_lists_what_events_of_earlier_versions_lack() {
    let old = r#"{"event":"workers","update":1,"workers":[{"rank":0,"host":"a","device":"cpu:0","samples":5,"share":1.0,
                  "samples_per_second":6,"idle":0.1}]}"#;
    let report = report(&[update(1, 2.0, None), old.to_owned()]);
    assert_eq!((report.updates, report.prediction, report.ranks.len()), (1, None, 0));
    assert_eq!(report.missing.len(), 3, "{:?}", report.missing);
    assert!(report.advice[0].starts_with("too little was recorded"), "{:?}", report.advice);
    let worker = &report.workers[0];
    assert_eq!((worker.share, worker.samples_per_second, worker.idle, worker.computing), (1.0, 6.0, 0.1, 0.9));
    assert_eq!(Report::new(events(&[start(1, 0), end("failed", 1.0)]), Settings::default()), None);
    assert_eq!(Report::new(Vec::new(), Settings::default()), None);
}

#[test]
fn the_largest_cost_comes_first() {
    let with = |ranks: [(&str, f64, f64, f64); 2], settings: Settings| {
        let lines = [start(2, 0), update(1, 10.0, Some(10.0)), workers(1, 10.0, ranks)];
        Report::new(events(&lines), settings).unwrap().advice
    };
    let usual = Settings::default();
    let network = with([("a", 5.0, 4.6, 0.4), ("b", 5.0, 4.6, 0.4)], usual);
    assert!(network[0].contains("network takes 46 %") && network[0].contains("bf16"), "{network:?}");
    let half = with([("a", 5.0, 4.6, 0.4), ("b", 5.0, 4.6, 0.4)], Settings { bf16_wire: true, ..usual });
    assert!(half[0].contains("network") && !half[0].contains("bf16"), "{half:?}");
    let waiting = with([("a", 4.0, 2.0, 4.0), ("b", 8.0, 2.0, 0.0)], usual);
    assert!(waiting[0].starts_with("rank 0 (a) waits 40 % of its time for rank 1 (b)"), "{waiting:?}");
    assert!(waiting[1].contains("network takes 20 %"), "{waiting:?}");
    let in_turn = with([("a", 7.0, 0.0, 3.0), ("b", 7.5, 0.0, 2.5)], usual);
    assert!(in_turn[0].starts_with("the ranks wait 28 %") && in_turn[0].contains("the slowest changes"), "{in_turn:?}");
    let by_hand = with([("a", 4.0, 2.0, 4.0), ("b", 8.0, 2.0, 0.0)], Settings { split_by_hand: true, ..usual });
    assert!(by_hand[0].contains("batch.split = \"measured\""), "{by_hand:?}");
    let good = with([("a", 9.8, 0.1, 0.1), ("b", 9.8, 0.1, 0.1)], usual);
    assert_eq!(good, ["nothing to improve: the ranks compute for 98 % of the update time"]);
}

#[test]
fn a_bad_prediction_is_reported() {
    let lines: Vec<String> = (1..9).map(|at| update(at, 2.0, Some(1.0))).collect();
    let advice = report(&lines).advice;
    assert!(advice.last().unwrap().contains("differ from their prediction by 50 %"), "{advice:?}");
    let advice = report(&lines[..4]).advice;
    assert!(!advice.iter().any(|line| line.contains("prediction")), "{advice:?}");
}

/// All ranks are on one host, so that only their numbers tell them apart.
#[test]
fn totals_before_and_after_a_loss_are_added_up_per_process() {
    let lines = [
        start(4, 0),
        update(1, 2.0, None),
        workers(1, 2.0, [("vm", 1.0, 0.0, 0.0), ("vm", 1.1, 0.0, 0.0), ("vm", 1.2, 0.0, 0.0), ("vm", 1.3, 0.0, 0.0)]),
        lost(1, 1, "vm"),
        regrouped(1, 1, 3, 0.5),
        update(2, 3.0, None),
        update(3, 1.0, None),
        // An earlier one of the same ranks, which the next replaces.
        workers(1, 3.0, [("vm", 1.0, 0.0, 0.0), ("vm", 1.0, 0.0, 0.0), ("vm", 1.0, 0.0, 0.0)]),
        // Rank 2 of the start is rank 1 now and leads from here on.
        lead(3, "vm"),
        workers(2, 4.0, [("vm", 2.0, 0.0, 1.0), ("vm", 2.2, 0.0, 1.0), ("vm", 2.3, 0.0, 1.0)]),
        lost(3, 0, "vm"),
        regrouped(3, 2, 2, 0.25),
        update(4, 4.0, None),
        workers(1, 4.0, [("vm", 3.0, 0.0, 0.0), ("vm", 3.5, 0.0, 0.0)]),
        end("finished", 14.0),
    ];
    let report = report(&lines);
    let expected = [(0, "vm", 3.0, 6.0), (1, "vm", 1.1, 2.0), (2, "vm", 1.2 + 2.2 + 3.0, 10.0), (3, "vm", 7.1, 10.0)];
    for (found, expected) in ranks(&report).into_iter().zip(expected) {
        assert_eq!((found.0, found.1, found.3), (expected.0, expected.1, expected.3));
        assert!((found.2 - expected.2).abs() < 1e-9, "{found:?}");
    }
    assert_eq!((report.ranks.len(), report.workers.len()), (4, 4));
    assert!((report.workers[2].computing - 0.64).abs() < 1e-9, "{:?}", report.workers[2]);
    // Its rank waited for 1 of its 10 s.
    assert!((report.workers[3].idle - 0.1).abs() < 1e-9, "{:?}", report.workers[3]);
    assert!((report.workers.iter().map(|worker| worker.share).sum::<f64>() - 1.0).abs() < 1e-9);
    assert_eq!((report.world, report.process_groups, report.outcome.as_deref()), (4, 1, Some("finished")));
    // Only predictions are missing.
    assert_eq!(report.missing.len(), 1, "{:?}", report.missing);
    let spent = report.spent;
    assert_eq!((spent.wall_s, spent.updates_s, spent.other_s), (14.0, 10.0, 1.25));
    assert_eq!((spent.interrupted_s, spent.regrouping_s), (2.0, 0.75));
}

#[test]
fn each_loss_has_its_reason_and_its_cost() {
    let gone = |rank: usize, host: &str| LostRecord { rank, host: host.to_owned(), reason: "it is gone".to_owned() };
    let lines = [
        start(4, 0),
        update(1, 2.0, None),
        lost(1, 1, "b"),
        lost(1, 3, "d"),
        regrouped(1, 1, 2, 0.5),
        update(2, 3.0, None),
        update(3, 1.0, None),
        // The old lead has failed by itself and has written its end.
        end("failed", 9.0),
        lead(3, "c"),
        lost(3, 0, "a"),
        regrouped(3, 2, 1, 0.25),
    ];
    let report = report(&lines);
    let expected = [
        MembershipChange {
            update: 1,
            lost: vec![gone(1, "b"), gone(3, "d")],
            left: Vec::new(),
            new_lead: None,
            continued: Some(Continuation {
                world: 2,
                devices: 2,
                interrupted_s: 1.0,
                regroup_s: 0.5,
                repeated_update_s: Some(3.0),
            }),
        },
        MembershipChange {
            update: 3,
            lost: vec![gone(0, "a")],
            left: Vec::new(),
            new_lead: Some(LeadRecord { rank: Some(2), host: "c".to_owned() }),
            continued: Some(Continuation {
                world: 1,
                devices: 1,
                interrupted_s: 1.0,
                regroup_s: 0.25,
                repeated_update_s: None,
            }),
        },
    ];
    assert_eq!(report.membership_changes, expected);
    assert_eq!((report.outcome, report.spent.wall_s), (None, 8.75));
    let stopped = Report::new(events(&[update(1, 2.0, None), lost(1, 1, "b")]), Settings::default()).unwrap();
    assert_eq!((stopped.membership_changes.len(), &stopped.membership_changes[0].continued), (1, &None));
}

#[test]
fn a_leave_repeats_no_update() {
    let shares = r#"[{"rank":0,"before":0.5,"after":0.0},{"rank":1,"before":0.5,"after":1.0}]"#;
    let left = format!(r#"{{"event":"left","update":1,"rank":0,"host":"a","reason":"SIGTERM","shares":{shares}}}"#);
    let lines = [start(2, 0), update(1, 2.0, None), lead(1, "b"), left, regrouped(1, 1, 1, 0.5), update(2, 3.0, None)];
    let changes = report(&lines).membership_changes;
    let [MembershipChange { lost, left, new_lead, continued, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert!(lost.is_empty(), "{lost:?}");
    assert_eq!((left[0].rank, left[0].reason.as_str(), left[0].shares[1].after), (0, "SIGTERM", 1.0));
    assert_eq!(new_lead.as_ref().and_then(|lead| lead.rank), Some(1));
    assert_eq!(continued.as_ref().map(|continued| continued.repeated_update_s), Some(None));
}

/// Without a shared run directory, a new lead writes a file of its own, from its first update on.
#[test]
fn a_file_of_a_new_lead_lacks_what_was_before() {
    let before = [("b", 1.0, 0.0, 0.0), ("b", 1.1, 0.0, 0.0), ("b", 1.2, 0.0, 0.0)];
    let after = [("b", 1.0, 0.0, 0.0), ("b", 1.0, 0.0, 0.0)];
    let lines = |regroups: u64, lost_rank: usize| {
        let loss = [lead(5, "b"), workers(5, 2.0, before), lost(5, lost_rank, "b"), regrouped(5, regroups, 2, 0.5)];
        let later = [update(6, 3.0, None), workers(1, 3.0, after), end("finished", 9.0)];
        loss.into_iter().chain(later).collect::<Vec<_>>()
    };
    // The first loss: numbers are those of the start.
    let first = report(&lines(1, 0));
    assert_eq!(ranks(&first), [(0, "b", 1.0, 2.0), (1, "b", 2.1, 5.0), (2, "b", 2.2, 5.0)]);
    assert_eq!(first.membership_changes[0].new_lead, Some(LeadRecord { rank: Some(1), host: "b".to_owned() }));
    let is_about_ranks = |text: &String| text.starts_with("which rank is which");
    assert!(!first.missing.iter().any(is_about_ranks), "{:?}", first.missing);
    // A later one: which ranks were lost before is not known.
    let second = report(&lines(2, 0));
    assert_eq!(second.membership_changes[0].new_lead, Some(LeadRecord { rank: None, host: "b".to_owned() }));
    assert!(second.missing.iter().any(is_about_ranks), "{:?}", second.missing);
}
