//! Evaluation over all ranks: every device evaluates a part of the validation samples, and all
//! ranks add up the sums. Called by the trainer for validation and by `hetseq eval`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use hetseq_balance::{AssignedWork, BalanceError, Plan, Planner, SplitMode, WorkTime};
use hetseq_comm::Group;
use hetseq_data::{EpochPlan, GlobalBatch, PlanSpec, SampleLengths};
use hetseq_metrics::{Event, terminal};
use serde::Serialize;

use crate::data::loader::{LoadRequest, Loader};
use crate::error::TrainError;
use crate::task::skipped_samples::{self, SkippedSample};
use crate::task::{Metric, Split, Totals};
use crate::trainer::losses::{mean_losses, named, weighted};
use crate::trainer::messages;
use crate::trainer::session::Session;
use crate::trainer::stop::{Announcement, StopFlag, StopRequest};
use crate::trainer::valid_rounds::ValidRounds;

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    pub samples: u64,
    pub loss: f64,
    pub terms: BTreeMap<String, f64>,
    #[serde(flatten)]
    pub metrics: BTreeMap<String, f64>,
    pub seconds: f64,
    /// The task's metrics, with their directions.
    #[serde(skip)]
    measured: Vec<Metric>,
    #[serde(skip)]
    pub(crate) skipped: Vec<SkippedSample>,
}

impl Evaluation {
    /// The metric `name`: the loss, or one of the task's.
    pub(crate) fn metric(&self, name: &str) -> Option<Metric> {
        let loss = || Metric::lower("loss", self.loss);
        self.measured.iter().find(|metric| metric.name == name).cloned().or_else(|| (name == "loss").then(loss))
    }

    pub(crate) fn event(&self, update: u64, epoch: u64) -> Event {
        Event::Valid {
            update,
            epoch,
            loss: self.loss,
            terms: self.terms.clone(),
            samples: self.samples,
            seconds: self.seconds,
            metrics: self.metrics.clone(),
        }
    }
}

/// An evaluation, or why there is none.
pub(crate) enum Evaluated {
    Done(Evaluation),
    /// The task has no validation samples.
    NoSamples,
    /// A rank was asked to stop, and all ranks have dropped the evaluation.
    Stopped,
}

/// Evaluates the devices' current parameters on the validation samples. A collective: all ranks call
/// it at the same point. `planner` knows the devices' speeds, `batch` is the global batch of training.
/// If `stop` is set on a rank, all ranks stop after the round in progress. Without it, rounds are as
/// large as possible from the start.
pub(crate) fn evaluate(
    session: &mut Session,
    loader: &Loader,
    planner: Planner,
    (split, batch): (SplitMode, GlobalBatch),
    stop: Option<&StopFlag>,
) -> Result<Evaluated, TrainError> {
    let started = Instant::now();
    let lengths = session.task.data.lengths(Split::Valid);
    let all = lengths.samples();
    if all == 0 {
        return Ok(Evaluated::NoSamples);
    }
    let spec = PlanSpec { seed: 0, batch: GlobalBatch::Sequences(all), curriculum_epochs: 0, shuffle: false };
    let plan = EpochPlan::new(&lengths, &spec, 0);
    let samples = plan.update(0).samples;
    let (max_tokens, max_samples) = training_caps(batch, session.cluster.members.len(), &lengths);
    let mut planner = planner.with_default_caps(max_tokens, max_samples);
    let mut rounds = match stop {
        Some(_) => rounds(&planner, split, samples, &lengths)?,
        None => ValidRounds::new(all, planner.devices(), 0.0),
    };
    // Requests a round from the loader. Returns what it assigns to the devices of all ranks.
    let request = |session: &Session, planner: &mut Planner, round: Range<usize>| -> Result<Requested, TrainError> {
        let samples = &samples[round.clone()];
        let tokens: Vec<u32> = samples.iter().map(|&sample| lengths.padded(sample)).collect();
        let plan = share(planner, split, &tokens)?;
        let devices = session.cluster.local_micro_batches(&plan.shares, samples, &tokens);
        loader.request(LoadRequest { split: Split::Valid, epoch: 0, devices })?;
        Ok(Requested { round, work: plan.work })
    };
    let (mut totals, mut skipped) = (Totals::default(), Vec::new());
    let mut next = rounds.next().map(|round| request(session, &mut planner, round)).transpose()?;
    while let Some(Requested { round, work: assigned }) = next {
        terminal::validating(round.start as u64, all as u64);
        let work = loader.take()?;
        skipped.extend(work.skipped);
        next = rounds.next().map(|round| request(session, &mut planner, round)).transpose()?;
        let mut times = Vec::new();
        for (part, compute) in session.devices.evaluate(work.devices)? {
            times.push(compute.as_micros() as u64);
            totals.merge(&part);
        }
        // Not only for the split: a rank that waits for a slow one sees its progress.
        let (times, request) = exchange_round(&mut session.group, times, stop.and_then(StopFlag::announcement))?;
        if request.is_some() {
            return Ok(Evaluated::Stopped);
        }
        rounds.observe(round.len(), times.iter().copied().max().unwrap_or(0) as f64 * 1e-6);
        let done = |(work, &micros): (&AssignedWork, &u64)| WorkTime { base_s: work.base_s, micros, after_micros: 0 };
        planner.observe(&assigned.iter().zip(&times).map(done).collect::<Vec<_>>());
    }
    let (totals, skipped) = sum_over_ranks(session, totals, skipped)?;
    check(&totals, all as u64, skipped.first()).map_err(|reason| session.task.error(reason))?;
    let terms = &session.task.data.terms();
    let means = mean_losses(&totals.losses, &totals.counts);
    let mut measured = session.task.compute.metrics(&totals).map_err(|reason| session.task.error(reason))?;
    broadcast_metrics(&mut session.group, &mut measured)?;
    Ok(Evaluated::Done(Evaluation {
        samples: totals.samples,
        loss: weighted(terms, &means),
        terms: named(terms, &means),
        metrics: measured.iter().map(|metric| (metric.name.clone(), metric.value)).collect(),
        seconds: started.elapsed().as_secs_f64(),
        measured,
        skipped,
    }))
}

/// A round that was requested from the loader.
struct Requested {
    /// Positions of its samples.
    round: Range<usize>,
    /// Of all devices of the group.
    work: Vec<AssignedWork>,
}

/// The rounds of an evaluation of `samples`. The first is as large as the planner's prediction allows.
fn rounds(
    planner: &Planner,
    split: SplitMode,
    samples: &[u32],
    lengths: &SampleLengths,
) -> Result<ValidRounds, TrainError> {
    let largest = ValidRounds::new(samples.len(), planner.devices(), 0.0).largest().min(samples.len());
    let tokens: Vec<u32> = samples[..largest].iter().map(|&sample| lengths.padded(sample)).collect();
    let plan = share(&mut planner.clone(), split, &tokens)?;
    Ok(ValidRounds::new(samples.len(), planner.devices(), plan.prediction.update_s))
}

/// Splits a round. A sample longer than every cap, which only training samples were measured for,
/// goes to the devices with the largest cap.
fn share(planner: &mut Planner, split: SplitMode, tokens: &[u32]) -> Result<Plan, BalanceError> {
    match planner.share(split, tokens) {
        Err(BalanceError::SampleTooLong { sample_tokens, largest_cap_tokens }) => {
            planner.raise_caps(largest_cap_tokens, sample_tokens);
            planner.share(split, tokens)
        }
        shared => shared,
    }
}

/// (max tokens, max samples) for devices without caps: micro-batches as large as those of training
/// on devices of equal speed, which are known to fit.
fn training_caps(batch: GlobalBatch, devices: usize, lengths: &SampleLengths) -> (Option<u32>, Option<u32>) {
    let per_device = |all: usize| u32::try_from(all.div_ceil(devices)).unwrap_or(u32::MAX);
    match batch {
        GlobalBatch::Sequences(all) => (None, Some(per_device(all))),
        GlobalBatch::Tokens(all) => (Some(per_device(all).max(lengths.longest())), None),
    }
}

/// Every sample must be computed once, and some must have something to predict: a loss over nothing
/// would be 0, the best ever.
fn check(totals: &Totals, samples: u64, skipped: Option<&SkippedSample>) -> Result<(), String> {
    if totals.samples != samples {
        return Err(format!("{} validation samples were computed, there are {samples}", totals.samples));
    }
    if totals.counts.iter().all(|&count| count == 0) {
        let reason = skipped.map_or("they have nothing to predict", |skipped| &skipped.reason);
        return Err(format!("none of the {samples} validation samples could be used: {reason}"));
    }
    Ok(())
}

/// Microseconds that each device of each rank computed in a round, in the order of the cluster, and
/// the first rank that was asked to stop, if the ranks must deal with that now.
fn exchange_round(
    group: &mut Group,
    times: Vec<u64>,
    stop: Option<Announcement>,
) -> Result<(Vec<u64>, Option<StopRequest>), TrainError> {
    let (times, stops): (Vec<Vec<u64>>, Vec<_>) = messages::all_gather(group, &(times, stop))?.into_iter().unzip();
    Ok((times.into_iter().flatten().collect(), StopRequest::due(stops)))
}

/// Sums over the ranks, added in rank order on each rank.
fn sum_over_ranks(
    session: &mut Session,
    local: Totals,
    skipped: Vec<SkippedSample>,
) -> Result<(Totals, Vec<SkippedSample>), TrainError> {
    let skipped = skipped_samples::for_peers(skipped, session.rank_label().as_deref());
    let (mut totals, mut all_skipped) = (Totals::default(), Vec::new());
    for (rank, (part, skipped)) in messages::all_gather(&mut session.group, &(local, skipped))?.into_iter().enumerate()
    {
        if !totals.can_merge(&part) {
            return Err(TrainError::Decode { rank, reason: "its counts are too large".to_owned() });
        }
        totals.merge(&part);
        all_skipped.extend(skipped);
    }
    Ok((totals, all_skipped))
}

/// Sets the values of `metrics` to rank 0's. The sums are equal on all ranks, but functions of them
/// (such as an exponential) may differ in the last bit between machines' libraries; and whether a
/// metric is the best decides whether all ranks save.
fn broadcast_metrics(group: &mut Group, metrics: &mut [Metric]) -> Result<(), TrainError> {
    let local: Vec<f64> = metrics.iter().map(|metric| metric.value).collect();
    let values: Vec<f64> = messages::decode(0, &group.broadcast_bytes(0, messages::encode(&local)?)?)?;
    if values.len() != metrics.len() {
        let reason = format!("{} metrics instead of {}", values.len(), metrics.len());
        return Err(TrainError::Decode { rank: 0, reason });
    }
    for (metric, value) in metrics.iter_mut().zip(values) {
        metric.value = value;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hetseq_balance::{CostTable, DeviceProfile, LinkProfile, Profile, RankProfile};
    use hetseq_comm::Options;

    use super::*;

    #[test]
    fn all_ranks_use_the_metrics_of_rank_0() {
        let measured = [2f64.exp(), 2f64.exp().next_up()];
        let groups = Group::local(2, &Options::default()).unwrap().into_iter().zip(measured);
        let metrics: Vec<f64> = std::thread::scope(|scope| {
            let ranks: Vec<_> = groups
                .map(|(mut group, local)| {
                    scope.spawn(move || {
                        let mut metrics = [Metric::lower("perplexity", local)];
                        broadcast_metrics(&mut group, &mut metrics).unwrap();
                        group.close();
                        metrics[0].value
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(metrics, [measured[0]; 2]);
    }

    #[test]
    fn micro_batches_are_no_larger_than_those_of_training() {
        let lengths = SampleLengths::PerSample(vec![10, 900, 30]);
        assert_eq!(training_caps(GlobalBatch::Sequences(33), 4, &lengths), (None, Some(9)));
        assert_eq!(training_caps(GlobalBatch::Tokens(8000), 4, &lengths), (Some(2000), None));
        // A device must be able to take the longest sample.
        assert_eq!(training_caps(GlobalBatch::Tokens(2000), 4, &lengths), (Some(900), None));
    }

    #[test]
    fn a_sample_longer_than_every_cap_is_computed_alone_on_the_largest_device() {
        let device = |name: &str, max_tokens| DeviceProfile {
            name: name.to_owned(),
            table: CostTable::proportional(1.0),
            after_s: 0.0,
            weight: 1.0,
            max_tokens: Some(max_tokens),
            max_samples: None,
        };
        let rank = RankProfile {
            host: "a".to_owned(),
            devices: vec![device("cpu:0", 30), device("gpu:0", 60)],
            host_s: 0.0,
            link: LinkProfile::default(),
            shard_weight: None,
        };
        let profile = Profile { task: String::new(), parameters: 0, exchange_bytes: 0, ranks: vec![rank] };
        let mut planner = Planner::new(&profile);
        let plan = share(&mut planner, SplitMode::Equal, &[20, 25, 70, 90]).unwrap();
        let micro: Vec<_> = plan.shares.iter().map(|share| share.micro.clone()).collect();
        assert!(micro[0].iter().all(|samples| samples.end <= 2), "{micro:?}");
        assert_eq!(micro[1][micro[1].len() - 2..], [2..3, 3..4]);
    }

    #[test]
    fn samples_that_cannot_be_read_are_an_error() {
        let totals = |samples, counts| Totals { samples, counts, ..Totals::default() };
        assert_eq!(check(&totals(5, vec![0, 3]), 5, None), Ok(()));
        let torn = SkippedSample { sample: 1, reason: "a.jpg is torn".to_owned() };
        let error = check(&totals(5, vec![0]), 5, Some(&torn)).unwrap_err();
        assert_eq!(error, "none of the 5 validation samples could be used: a.jpg is torn");
        assert!(
            check(&totals(4, vec![4]), 5, None)
                .unwrap_err()
                .contains("4 validation samples were computed, there are 5")
        );
    }
}
