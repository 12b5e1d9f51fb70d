//! What to improve first: everything that costs more than it should, weighed by what could be gained of the whole time.

use super::{RankTotal, Report, Settings};

/// Below this part of the time nothing is worth a word.
const WORTHWHILE: f64 = 0.05;
/// Predictions that are off by more are not to be relied on.
const IMPRECISE: f64 = 0.15;

/// The most worthwhile first; never empty.
pub(super) fn advice(report: &Report, settings: Settings) -> Vec<String> {
    let mut found = Vec::new();
    // What is known of ranks is of updates alone.
    let updates = part(report.spent.updates_s, report.spent.wall_s);
    found.extend(network(report, settings, updates));
    found.extend(waiting(report, settings, updates));
    found.extend(data(report, updates));
    found.extend(host(report, updates));
    found.extend(beside_updates(report));
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut advice: Vec<String> = found.into_iter().map(|(_, words)| words).collect();
    if advice.is_empty() {
        advice.push(nothing(report));
    }
    let fit = report.prediction_of_last_plan.or(report.prediction);
    if let Some(fit) = fit.filter(|fit| fit.error > IMPRECISE) {
        advice.push(format!(
            "updates differ from their prediction by {} in the middle: somebody else uses the machines or the network, or \
             they were not so when they were measured",
            percent(fit.error)
        ));
    }
    advice
}

fn part(of: f64, whole: f64) -> f64 {
    if whole > 0.0 { of / whole } else { 0.0 }
}

fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

/// A kind of time, as its part of all ranks' time.
fn of_ranks(report: &Report, seconds: impl Fn(&RankTotal) -> f64) -> f64 {
    part(report.ranks.iter().map(seconds).sum(), report.ranks.iter().map(|rank| rank.wall_s).sum())
}

fn network(report: &Report, settings: Settings, updates: f64) -> Option<(f64, String)> {
    let exchange = of_ranks(report, |rank| rank.seconds.exchange_s);
    let gain = 0.5 * exchange * updates;
    (gain > 0.5 * WORTHWHILE).then(|| {
        let remedy = match settings.half_wire {
            false => "comm.wire = \"bf16\" would halve its bytes",
            true => "a larger batch.global would exchange less often per sample; so would a faster network",
        };
        (gain, format!("the network takes {} of each update: {remedy}", percent(exchange)))
    })
}

/// The rank that waits most is named, and the one that is waited for, if it is one.
fn waiting(report: &Report, settings: Settings, updates: f64) -> Option<(f64, String)> {
    let wait = |rank: &RankTotal| part(rank.seconds.wait_s, rank.wall_s);
    let most = report.ranks.iter().max_by(|a, b| wait(a).total_cmp(&wait(b)))?;
    let least = report.ranks.iter().min_by(|a, b| wait(a).total_cmp(&wait(b)))?;
    let waited = of_ranks(report, |rank| rank.seconds.wait_s);
    let gain = waited * updates;
    if gain <= WORTHWHILE || report.ranks.len() < 2 {
        return None;
    }
    let (rank, host) = (most.seconds.rank, &most.seconds.host);
    let (slow, slow_host) = (least.seconds.rank, &least.seconds.host);
    let who = format!("rank {rank} ({host}) waits {} of its time for others", percent(wait(most)));
    let words = if settings.split_by_hand {
        format!("{who}: batch.split = \"measured\" would give each what it can do")
    } else if wait(least) > 0.5 * wait(most) {
        format!(
            "the ranks wait {} of their time, now for one and now for another: their speeds change from update to \
             update; find out who else uses the machines",
            percent(waited)
        )
    } else if report.spent.lost_until_replanned_s > 0.5 * gain * report.spent.wall_s {
        format!("{who}: rank {slow} ({slow_host}) was disturbed; find out who else uses it")
    } else {
        format!(
            "{who}: rank {slow} ({slow_host}) is waited for; a larger batch.global lets shares be finer, and `hetseq \
             plan` tells whether the group is faster without a rank"
        )
    };
    Some((gain, words))
}

fn data(report: &Report, updates: f64) -> Option<(f64, String)> {
    let waited = part(report.spent.data_wait_s, report.spent.updates_s);
    let gain = waited * updates;
    (gain > WORTHWHILE).then(|| {
        let words = "of each update samples are waited for: raise run.loader_threads or run.prefetch, or put the data on \
                     a faster disk";
        (gain, format!("{} {words}", percent(waited)))
    })
}

/// A part of it must be; so it counts less than what could be done away with.
fn host(report: &Report, updates: f64) -> Option<(f64, String)> {
    let host = of_ranks(report, |rank| rank.seconds.host_s);
    let gain = 0.5 * host * updates;
    (gain > WORTHWHILE).then(|| {
        let words = "of each update goes into adding devices up, the optimizer and loading parameters: a larger \
                     batch.global would do that less often per sample";
        (gain, format!("{} {words}", percent(host)))
    })
}

fn beside_updates(report: &Report) -> impl Iterator<Item = (f64, String)> {
    let spent = &report.spent;
    let kinds = [
        (spent.validation_s, "validation takes", "validate less often with valid.every"),
        (spent.checkpoints_s, "training stands still for checkpoints", "save less often with checkpoint.every"),
    ];
    let wall_s = spent.wall_s;
    let told = kinds.map(|(seconds, what, remedy)| {
        let gain = part(seconds, wall_s);
        (gain, format!("{what} {} of the time: {remedy}", percent(gain)))
    });
    told.into_iter().filter(|(gain, _)| *gain > WORTHWHILE)
}

fn nothing(report: &Report) -> String {
    if report.ranks.is_empty() {
        return "too little was recorded to say what to improve; train with this version to be told".to_owned();
    }
    let computing = of_ranks(report, |rank| rank.seconds.compute_s);
    format!("nothing to improve: the ranks compute {} of the time of updates", percent(computing))
}
