//! Formats a report as text. Pure; called by `hetseq report`.

use hetseq_metrics::report::{
    Continuation, HealedRecord, JoinedRecord, LeadRecord, LeftRecord, LostRecord, MembershipChange, PlanRecord,
    PredictionFit, RankSummary, Report, TimeSpent, WorkerSummary,
};
use hetseq_metrics::{ShareChange, duration, thousands};

use crate::table::{TextTable, percent, rate, short_time};

/// How many of the newest plans and lost ranks to list: a long run has many.
const MAX_PLANS: usize = 10;
const MAX_CHANGES: usize = 10;
const BAR_WIDTH: usize = 30;

pub(super) fn lines(report: &Report) -> Vec<String> {
    let mut lines = heading(report);
    lines.extend(predictions(report));
    if !report.workers.is_empty() {
        lines.push(String::new());
        lines.extend(worker_table(&report.workers));
    }
    if !report.ranks.is_empty() {
        lines.push(String::new());
        lines.push("update time by rank: # computing, ~ exchange, h host, d data, . waiting".to_owned());
        lines.extend(rank_table(&report.ranks));
    }
    lines.push(String::new());
    lines.extend(spent(&report.spent));
    if !report.membership_changes.is_empty() {
        lines.push(String::new());
        lines.extend(membership_changes(&report.membership_changes));
    }
    if !report.joined.is_empty() {
        lines.push(String::new());
        lines.extend(joined(&report.joined));
    }
    if !report.healed.is_empty() {
        lines.push(String::new());
        lines.extend(healed(&report.healed));
    }
    if !report.plans.is_empty() {
        lines.push(String::new());
        lines.extend(plans(&report.plans));
    }
    if !report.missing.is_empty() {
        lines.push(String::new());
        lines.extend(report.missing.iter().map(|missing| format!("not recorded: {missing}")));
    }
    lines.push(String::new());
    for (at, advice) in report.advice.iter().enumerate() {
        lines.push(format!("{}{advice}", if at == 0 { "first: " } else { "then:  " }));
    }
    lines
}

fn heading(report: &Report) -> Vec<String> {
    let outcome = report.outcome.as_deref().unwrap_or("running or killed");
    let task = if report.task.is_empty() { "unknown task" } else { &report.task };
    let groups = match report.process_groups {
        0 | 1 => String::new(),
        n => format!(", started {n} times"),
    };
    vec![
        format!("run        {task}, {} ranks, {} devices: {outcome}{groups}", report.world, report.devices),
        format!(
            "updates    {} in {}, {} samples/s",
            thousands(report.updates),
            duration(report.spent.wall_s),
            rate(report.samples_per_second)
        ),
    ]
}

fn predictions(report: &Report) -> Vec<String> {
    let line = |name: &str, fit: Option<PredictionFit>| {
        fit.map(|PredictionFit { updates, measured_s, predicted_s, error }| {
            let of = if updates == 1 { "1 update".to_owned() } else { format!("medians of {updates} updates") };
            let (predicted, measured) = (short_time(predicted_s), short_time(measured_s));
            format!("{name} {predicted} per update, {measured} measured, {} off ({of})", percent(error))
        })
    };
    let last = report.prediction_of_last_plan.filter(|last| Some(*last) != report.prediction);
    [line("prediction", report.prediction), line("last plan ", last)].into_iter().flatten().collect()
}

fn joined(joined: &[JoinedRecord]) -> Vec<String> {
    let mut lines = vec!["joined while the run trained".to_owned()];
    let newest = joined.iter().skip(joined.len().saturating_sub(MAX_CHANGES));
    lines.extend(newest.map(|JoinedRecord { update, rank, host, world, devices, seconds }| {
        let at = thousands(*update);
        format!(
            "  after update {at}: rank {rank} ({host}); {world} ranks and {devices} devices since then; the others waited {seconds:.3} s"
        )
    }));
    lines
}

fn healed(healed: &[HealedRecord]) -> Vec<String> {
    let mut lines = vec!["wrong parameters, replaced by those of the other ranks".to_owned()];
    let newest = healed.iter().skip(healed.len().saturating_sub(MAX_CHANGES));
    lines.extend(newest.map(|HealedRecord { update, rank, host }| {
        format!("  after update {}: rank {rank} ({host}); test the memory of that machine", thousands(*update))
    }));
    lines
}

fn worker_table(workers: &[WorkerSummary]) -> Vec<String> {
    let mut table = TextTable::new(["<rank", "<host", "<device", "share", "samples/s", "computing", "idle", "<"]);
    let most = workers.iter().map(|worker| worker.share).fold(0.0, f64::max);
    for worker in workers {
        let length = if most > 0.0 { worker.share / most * BAR_WIDTH as f64 } else { 0.0 };
        table.row([
            worker.rank.to_string(),
            worker.host.clone(),
            worker.device.clone(),
            percent(worker.share),
            rate(worker.samples_per_second),
            percent(worker.computing),
            percent(worker.idle),
            "=".repeat(length.round() as usize),
        ]);
    }
    table.lines()
}

fn rank_table(ranks: &[RankSummary]) -> Vec<String> {
    let mut table =
        TextTable::new(["<rank", "<host", "computing", "exchange", "host", "data", "waiting", "other", "<"]);
    for RankSummary { seconds, wall_s, other_s } in ranks {
        let part = |of: f64| if *wall_s > 0.0 { of / wall_s } else { 0.0 };
        let kinds = [
            (part(seconds.compute_s), '#'),
            (part(seconds.exchange_s), '~'),
            (part(seconds.host_s), 'h'),
            (part(seconds.data_s), 'd'),
            (part(seconds.wait_s), '.'),
            (part(*other_s), ' '),
        ];
        let [computing, exchange, host, data, waiting, other] = kinds.map(|(part, _)| percent(part));
        let (rank, bar) = (seconds.rank.to_string(), bar(&kinds));
        table.row([rank, seconds.host.clone(), computing, exchange, host, data, waiting, other, bar]);
    }
    table.lines()
}

/// A bar in which each kind of time has the length of its part. The running sum is rounded, so that
/// all bars are equally long.
fn bar(kinds: &[(f64, char)]) -> String {
    let mut bar = String::from("[");
    let (mut sum, mut drawn) = (0.0, 0usize);
    for &(part, sign) in kinds {
        sum += part;
        let end = ((sum * BAR_WIDTH as f64).round() as usize).clamp(drawn, BAR_WIDTH);
        bar.extend(std::iter::repeat_n(sign, end - drawn));
        drawn = end;
    }
    bar.extend(std::iter::repeat_n(' ', BAR_WIDTH - drawn));
    bar.push(']');
    bar
}

fn spent(spent: &TimeSpent) -> Vec<String> {
    let line = |name: &str, seconds: f64| {
        let part = if spent.wall_s > 0.0 { seconds / spent.wall_s } else { 0.0 };
        format!("{name:<24}{:>12}  {:>7}", duration(seconds), percent(part))
    };
    let mut lines = vec![
        line("updates", spent.updates_s),
        line("  waiting for samples", spent.data_wait_s),
        line("  lost before a new plan", spent.lost_until_replanned_s),
        line("validation", spent.validation_s),
        line("pauses for checkpoints", spent.checkpoints_s),
    ];
    if spent.interrupted_s > 0.0 {
        lines.push(line("until a loss was noticed", spent.interrupted_s));
    }
    if spent.regrouping_s > 0.0 {
        lines.push(line("regrouping", spent.regrouping_s));
    }
    lines.push(line("startup and other", spent.other_s));
    lines
}

/// Each loss or leave of ranks, what followed and what it cost. Ranks have their numbers at the
/// start.
fn membership_changes(changes: &[MembershipChange]) -> Vec<String> {
    let mut lines = Vec::new();
    let first = changes.len().saturating_sub(MAX_CHANGES);
    if first > 0 {
        lines.push(format!("the last {MAX_CHANGES} of {} times that ranks were lost or left:", changes.len()));
    }
    let mut table = TextTable::new(["after update", "<event"]);
    for MembershipChange { update, lost, left, new_lead, continued } in &changes[first..] {
        let lost = lost.iter().map(|LostRecord { rank, host, reason }| format!("lost rank {rank} ({host}): {reason}"));
        let left = left.iter().flat_map(|LeftRecord { rank, host, reason, shares }| {
            [format!("rank {rank} ({host}) left, asked by {reason}"), share_changes(shares)]
        });
        let lead = new_lead.iter().map(|LeadRecord { rank, host }| {
            let rank = rank.map_or(String::new(), |rank| format!("rank {rank}, "));
            format!("new lead: {rank}{host}")
        });
        for (at, event) in lost.chain(left).chain(lead).chain([outcome(continued.as_ref())]).enumerate() {
            table.row([if at == 0 { thousands(*update) } else { String::new() }, event]);
        }
    }
    lines.extend(table.lines());
    lines
}

fn share_changes(shares: &[ShareChange]) -> String {
    let change = |ShareChange { rank, before, after }: &ShareChange| {
        format!("rank {rank} {} -> {}", percent(*before), percent(*after))
    };
    format!("shares: {}", shares.iter().map(change).collect::<Vec<_>>().join(", "))
}

fn outcome(continued: Option<&Continuation>) -> String {
    let Some(Continuation { world, devices, interrupted_s, regroup_s, repeated_update_s }) = continued else {
        return "the others did not continue".to_owned();
    };
    let count = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
    let repeated = repeated_update_s.map_or(String::new(), |s| format!(", repeated update: {}", short_time(s)));
    let noticed = match *interrupted_s {
        s if s > 0.0 => format!("noticed after {}, ", short_time(s)),
        _ => String::new(),
    };
    let (ranks, devices) = (count(*world, "rank"), count(*devices, "device"));
    format!("{ranks} and {devices} left; {noticed}regrouping: {}{repeated}", short_time(*regroup_s))
}

fn plans(plans: &[PlanRecord]) -> Vec<String> {
    let mut lines = Vec::new();
    let first = plans.len().saturating_sub(MAX_PLANS);
    if first > 0 {
        lines.push(format!("the last {MAX_PLANS} of {} plans:", plans.len()));
    }
    let mut table = TextTable::new(["plan from update", "predicted", "old plan", "gain", "lost before it"]);
    for plan in &plans[first..] {
        table.row([
            thousands(plan.update),
            short_time(plan.predicted_s),
            plan.before_s.map_or(String::new(), short_time),
            plan.gain.map_or(String::new(), percent),
            if plan.gain.is_some() { duration(plan.lost_s) } else { String::new() },
        ]);
    }
    lines.extend(table.lines());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bars_are_equally_long() {
        assert_eq!(bar(&[(0.5, '#'), (0.25, '~'), (0.25, '.')]), format!("[{}~~~~~~~~.......]", "#".repeat(15)));
        for kinds in
            [vec![], vec![(0.0, '#')], vec![(2.0, '#'), (1.0, '.')], vec![(0.33, '#'), (0.33, '~'), (0.33, '.')]]
        {
            assert_eq!(bar(&kinds).len(), BAR_WIDTH + 2, "{kinds:?}");
        }
    }

    #[test]
    fn each_loss_and_each_leave_is_listed_with_its_cost() {
        let share = |rank, before, after| ShareChange { rank, before, after };
        let lost = |rank: usize, reason: &str| LostRecord { rank, host: format!("node-{rank}"), reason: reason.into() };
        let changes = [
            MembershipChange {
                update: 1412,
                lost: vec![lost(0, "it sent nothing for 12 s"), lost(3, "it failed: x")],
                left: Vec::new(),
                new_lead: Some(LeadRecord { rank: Some(1), host: "node-1".into() }),
                continued: Some(Continuation {
                    world: 2,
                    devices: 1,
                    interrupted_s: 12.5,
                    regroup_s: 0.21,
                    repeated_update_s: Some(1.5),
                }),
            },
            MembershipChange { update: 1500, lost: vec![lost(1, "gone")], ..MembershipChange::default() },
            MembershipChange {
                update: 1600,
                left: vec![LeftRecord {
                    rank: 2,
                    host: "desk".into(),
                    reason: "SIGTERM".into(),
                    shares: vec![share(1, 0.25, 1.0), share(2, 0.75, 0.0)],
                }],
                continued: Some(Continuation {
                    world: 1,
                    devices: 2,
                    interrupted_s: 0.0,
                    regroup_s: 0.02,
                    repeated_update_s: None,
                }),
                ..MembershipChange::default()
            },
        ];
        let expected = [
            "after update  event",
            "       1,412  lost rank 0 (node-0): it sent nothing for 12 s",
            "              lost rank 3 (node-3): it failed: x",
            "              new lead: rank 1, node-1",
            "              2 ranks and 1 device left; noticed after 12.5 s, regrouping: 0.210 s, repeated update: 1.500 s",
            "       1,500  lost rank 1 (node-1): gone",
            "              the others did not continue",
            "       1,600  rank 2 (desk) left, asked by SIGTERM",
            "              shares: rank 1 25.0 % -> 100.0 %, rank 2 75.0 % -> 0.0 %",
            "              1 rank and 2 devices left; regrouping: 20.00 ms",
        ];
        assert_eq!(membership_changes(&changes), expected);
        let many = vec![MembershipChange::default(); MAX_CHANGES + 1];
        assert_eq!(membership_changes(&many)[0], "the last 10 of 11 times that ranks were lost or left:");
    }

    #[test]
    fn an_empty_report_does_not_divide_by_zero() {
        let lines = lines(&Report::default());
        assert!(lines.iter().all(|line| !line.contains("NaN") && !line.contains("inf")), "{lines:?}");
    }
}
