//! Advice: what to improve first. Every cost that is higher than necessary, sorted by its possible
//! gain as a part of the whole time.

use super::{RankSummary, Report, Settings};

/// Smaller gains, as a part of the time, are not worth mentioning.
const WORTHWHILE: f64 = 0.05;
/// Predictions with a larger error are unreliable.
const IMPRECISE: f64 = 0.15;
/// The first updates take longer than others: a prediction is compared with at least so many.
const MIN_UPDATES: usize = 5;

/// Recommendations, the largest gain first; never empty.
pub(super) fn advice(report: &Report, settings: Settings) -> Vec<String> {
    let mut found = Vec::new();
    // Ranks only report their time in updates.
    let updates = part(report.spent.updates_s, report.spent.wall_s);
    found.extend(network(report, settings, updates));
    found.extend(waiting(report, settings, updates));
    found.extend(data(report, updates));
    found.extend(host(report, updates));
    found.extend(besides_updates(report));
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut advice: Vec<String> = found.into_iter().map(|(_, text)| text).collect();
    if advice.is_empty() {
        advice.push(nothing_found(report));
    }
    let fit = report.prediction_of_last_plan.or(report.prediction);
    if let Some(fit) = fit.filter(|fit| fit.error > IMPRECISE && fit.updates >= MIN_UPDATES) {
        advice.push(format!(
            "updates differ from their prediction by {} (median): check whether other programs use the machines or \
             the network, now or when they were measured",
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

/// A kind of time as a part of the total time of all ranks.
fn of_ranks(report: &Report, seconds: impl Fn(&RankSummary) -> f64) -> f64 {
    part(report.ranks.iter().map(seconds).sum(), report.ranks.iter().map(|rank| rank.wall_s).sum())
}

fn network(report: &Report, settings: Settings, updates: f64) -> Option<(f64, String)> {
    let exchange = of_ranks(report, |rank| rank.seconds.exchange_s);
    let gain = 0.5 * exchange * updates;
    (gain > 0.5 * WORTHWHILE).then(|| {
        let remedy = match settings.bf16_wire {
            false => "set comm.wire_dtype = \"bf16\" to halve the bytes",
            true => "raise batch.global to exchange less often per sample, or use a faster network",
        };
        (gain, format!("the network takes {} of each update: {remedy}", percent(exchange)))
    })
}

/// Names the rank that waits most, and the one it waits for if there is a single one.
fn waiting(report: &Report, settings: Settings, updates: f64) -> Option<(f64, String)> {
    let wait = |rank: &RankSummary| part(rank.seconds.wait_s, rank.wall_s);
    let most = report.ranks.iter().max_by(|a, b| wait(a).total_cmp(&wait(b)))?;
    let least = report.ranks.iter().min_by(|a, b| wait(a).total_cmp(&wait(b)))?;
    let waited = of_ranks(report, |rank| rank.seconds.wait_s);
    let gain = waited * updates;
    if gain <= WORTHWHILE || report.ranks.len() < 2 {
        return None;
    }
    let (rank, host) = (most.seconds.rank, &most.seconds.host);
    let (slow, slow_host) = (least.seconds.rank, &least.seconds.host);
    let waits = format!("rank {rank} ({host}) waits {} of its time for", percent(wait(most)));
    let text = if settings.split_by_hand {
        format!("{waits} others: set batch.split = \"measured\" to split updates by measured speed")
    } else if wait(least) > 0.5 * wait(most) {
        format!(
            "the ranks wait {} of their time for each other, and the slowest changes from update to update: check \
             which other programs use the machines",
            percent(waited)
        )
    } else if report.spent.lost_until_replanned_s > 0.5 * gain * report.spent.wall_s {
        format!("{waits} rank {slow} ({slow_host}), which was disturbed: check which other programs use that machine")
    } else {
        format!(
            "{waits} rank {slow} ({slow_host}); a larger batch.global allows finer shares, and `hetseq plan` shows \
             whether the group is faster without a rank"
        )
    };
    Some((gain, text))
}

fn data(report: &Report, updates: f64) -> Option<(f64, String)> {
    let waited = part(report.spent.data_wait_s, report.spent.updates_s);
    let gain = waited * updates;
    (gain > WORTHWHILE).then(|| {
        let remedy = "raise run.loader_threads or run.prefetch, or move the data to a faster disk";
        (gain, format!("updates wait {} of their time for samples: {remedy}", percent(waited)))
    })
}

/// Only a part of this time can be saved, so it counts half.
fn host(report: &Report, updates: f64) -> Option<(f64, String)> {
    let host = of_ranks(report, |rank| rank.seconds.host_s);
    let gain = 0.5 * host * updates;
    (gain > WORTHWHILE).then(|| {
        let what = "summing over devices, the optimizer and loading parameters take";
        let remedy = "raise batch.global to do this less often per sample";
        (gain, format!("{what} {} of each update: {remedy}", percent(host)))
    })
}

fn besides_updates(report: &Report) -> impl Iterator<Item = (f64, String)> {
    let spent = &report.spent;
    let kinds = [
        (spent.validation_s, "validation takes", "validate less often (valid.every)"),
        (spent.checkpoints_s, "pauses for checkpoints take", "save less often (checkpoint.every)"),
    ];
    let wall_s = spent.wall_s;
    let texts = kinds.map(|(seconds, what, remedy)| {
        let gain = part(seconds, wall_s);
        (gain, format!("{what} {} of the time: {remedy}", percent(gain)))
    });
    texts.into_iter().filter(|(gain, _)| *gain > WORTHWHILE)
}

fn nothing_found(report: &Report) -> String {
    if report.ranks.is_empty() {
        return "too little was recorded for advice: train with this version to record where the time goes".to_owned();
    }
    let computing = of_ranks(report, |rank| rank.seconds.compute_s);
    format!("nothing to improve: the ranks compute for {} of the update time", percent(computing))
}
