//! Evaluation over all ranks: every device scores a part of the validation samples, and the sums are added up.

use std::collections::BTreeMap;
use std::time::Instant;

use hetseq_balance::{BalanceError, Done, Plan, Planner, Split, Work};
use hetseq_comm::Group;
use hetseq_data::{Costs, EpochPlan, GlobalBatch, PlanSpec};
use hetseq_metrics::Event;
use serde::Serialize;

use crate::crew::Crew;
use crate::error::TrainError;
use crate::loader::{Loader, Order};
use crate::replica::add;
use crate::roster::undecodable;
use crate::skips::{self, Skipped};
use crate::task::{Task, TaskError, Totals, Which};
use crate::trainer::{mean_losses, named, weighted};

/// What an evaluation found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    pub samples: u64,
    pub loss: f64,
    pub terms: BTreeMap<String, f64>,
    #[serde(flatten)]
    pub metrics: BTreeMap<String, f64>,
    pub seconds: f64,
    #[serde(skip)]
    pub(crate) skipped: Vec<Skipped>,
}

impl Evaluation {
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        if name == "loss" { Some(self.loss) } else { self.metrics.get(name).copied() }
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

/// Samples per device and round: enough to keep a device busy, few enough that the rounds' shares can follow its speed.
const ROUND_PER_DEVICE: usize = 128;

/// The devices' present parameters on the validation samples; none if the task has no such samples. A collective: all
/// ranks call it at the same point. `planner` is what is known of the devices' speeds, `batch` the global batch of training.
pub(crate) fn evaluate<T: Task>(
    crew: &mut Crew<T>,
    loader: &Loader<T>,
    planner: Planner,
    split: Split,
    batch: GlobalBatch,
) -> Result<Option<Evaluation>, TrainError> {
    let started = Instant::now();
    let costs = crew.task.costs(Which::Valid);
    if costs.samples() == 0 {
        return Ok(None);
    }
    let round = ROUND_PER_DEVICE * crew.roster.members.len();
    let spec = PlanSpec { seed: 0, batch: GlobalBatch::Sequences(round), curriculum_epochs: 0, shuffle: false };
    let plan = EpochPlan::new(&costs, &spec, 0);
    let (max_tokens, max_samples) = usual_caps(batch, crew.roster.members.len(), &costs);
    let mut planner = planner.with_usual_caps(max_tokens, max_samples);
    // Orders a round, and tells what the devices of all ranks will have computed in it.
    let order = |crew: &Crew<T>, planner: &mut Planner, k: usize| -> Result<Vec<Work>, TrainError> {
        let update = plan.update(k);
        let tokens: Vec<u32> = update.samples.iter().map(|&sample| costs.padded(sample)).collect();
        let plan = share(planner, split, &tokens)?;
        let devices = crew.roster.my_micro_batches(&plan.shares, update.samples, &tokens);
        loader.order(Order { which: Which::Valid, epoch: 0, devices })?;
        Ok(plan.work)
    };
    let (mut totals, mut skipped) = (Totals::default(), Vec::new());
    let mut next = order(crew, &mut planner, 0)?;
    for k in 0..plan.updates() {
        let given = std::mem::take(&mut next);
        let work = loader.take()?;
        skipped.extend(work.skipped);
        if k + 1 < plan.updates() {
            next = order(crew, &mut planner, k + 1)?;
        }
        let mut times = Vec::new();
        for (part, compute) in crew.devices.evaluate(work.devices, work.epoch_key)? {
            times.push(compute.as_micros() as u64);
            merge(&mut totals, part);
        }
        // Not only for the shares: a rank that waits for a slow one sees that it comes forward.
        let times = exchange_times(&mut crew.group, &times)?;
        let done = |(work, &micros): (&Work, &u64)| Done { base_s: work.base_s, micros, after_micros: 0 };
        planner.observe(&given.iter().zip(&times).map(done).collect::<Vec<_>>());
    }
    let (totals, skipped) = exchange(crew, totals, skipped)?;
    check(&totals, costs.samples() as u64, skipped.first())
        .map_err(|reason| TrainError::Task { task: T::NAME, reason: TaskError::Other(reason) })?;
    let terms = &crew.task.terms();
    let means = mean_losses(&totals.losses, &totals.counts);
    let values = as_rank_0(&mut crew.group, crew.task.measure(&totals))?;
    let names = crew.task.metrics();
    if names.len() != values.len() {
        let reason = format!("it names {} metrics but measured {}", names.len(), values.len());
        return Err(TrainError::Task { task: T::NAME, reason: TaskError::Other(reason) });
    }
    let metrics = names.iter().map(|metric| metric.name.to_owned()).zip(values).collect();
    Ok(Some(Evaluation {
        samples: totals.samples,
        loss: weighted(terms, &means),
        terms: named(terms, &means),
        metrics,
        seconds: started.elapsed().as_secs_f64(),
        skipped,
    }))
}

/// A sample longer than every cap, which only training samples were measured for, goes to the devices with the largest one.
fn share(planner: &mut Planner, split: Split, tokens: &[u32]) -> Result<Plan, BalanceError> {
    match planner.share(split, tokens) {
        Err(BalanceError::SampleTooLong { sample_tokens, largest_cap_tokens }) => {
            planner.raise_caps(largest_cap_tokens, sample_tokens);
            planner.share(split, tokens)
        }
        shared => shared,
    }
}

/// For devices without caps: micro-batches no larger than those of training with devices of equal speed, since that is what is
/// known to fit.
fn usual_caps(batch: GlobalBatch, devices: usize, costs: &Costs) -> (Option<u32>, Option<u32>) {
    let per_device = |all: usize| u32::try_from(all.div_ceil(devices)).unwrap_or(u32::MAX);
    match batch {
        GlobalBatch::Sequences(all) => (None, Some(per_device(all))),
        GlobalBatch::Tokens(all) => (Some(per_device(all).max(costs.longest())), None),
    }
}

/// Every sample counts once, and of some there must be something to learn: else a loss of nothing would be the best ever.
fn check(totals: &Totals, samples: u64, skipped: Option<&Skipped>) -> Result<(), String> {
    if totals.samples != samples {
        return Err(format!("{} validation samples were computed, there are {samples}", totals.samples));
    }
    if totals.counts.iter().all(|&count| count == 0) {
        let reason = skipped.map_or("they have nothing to predict", |skipped| &skipped.reason);
        return Err(format!("none of the {samples} validation samples could be used: {reason}"));
    }
    Ok(())
}

/// How long all devices of all ranks computed in a round, in microseconds and in the order of the roster.
fn exchange_times(group: &mut Group, mine: &[u64]) -> Result<Vec<u64>, TrainError> {
    let bytes = postcard::to_stdvec(mine).map_err(|error| undecodable(group.rank(), &error))?;
    let mut all = Vec::new();
    for (rank, bytes) in group.agree(&bytes)?.iter().enumerate() {
        let theirs: Vec<u64> = postcard::from_bytes(bytes).map_err(|error| undecodable(rank, &error))?;
        all.extend(theirs);
    }
    Ok(all)
}

/// Sums over the ranks, added in rank order on each.
fn exchange<T: Task>(
    crew: &mut Crew<T>,
    mine: Totals,
    skipped: Vec<Skipped>,
) -> Result<(Totals, Vec<Skipped>), TrainError> {
    let skipped = skips::to_tell(skipped, crew.whose().as_deref());
    let parts = (mine.samples, mine.counts, mine.losses, mine.scores, skipped);
    let bytes = postcard::to_stdvec(&parts).map_err(|error| undecodable(crew.group.rank(), &error))?;
    let (mut totals, mut all_skipped) = (Totals::default(), Vec::new());
    for (rank, bytes) in crew.group.agree(&bytes)?.iter().enumerate() {
        let (samples, counts, losses, scores, skipped): (_, _, _, _, Vec<Skipped>) =
            postcard::from_bytes(bytes).map_err(|error| undecodable(rank, &error))?;
        let part = Totals { samples, counts, losses, scores };
        if !can_merge(&totals, &part) {
            return Err(undecodable(rank, &"its counts are too large"));
        }
        merge(&mut totals, part);
        all_skipped.extend(skipped);
    }
    Ok((totals, all_skipped))
}

/// What rank 0 measured, for all. Sums are the same everywhere, but a task may make of them what differs in the last bit
/// from one machine's libraries to another's (an exponential, say); and whether it is the best decides whether all ranks
/// come together to save.
fn as_rank_0(group: &mut Group, mine: Vec<f64>) -> Result<Vec<f64>, TrainError> {
    let bytes = postcard::to_stdvec(&mine).map_err(|error| undecodable(group.rank(), &error))?;
    let bytes = group.broadcast_bytes(0, bytes)?;
    postcard::from_bytes(&bytes).map_err(|error| undecodable(0, &error))
}

/// Whether the counts of both can be added: a peer's may be any number.
fn can_merge(totals: &Totals, part: &Totals) -> bool {
    let mut counts = totals.counts.iter().zip(&part.counts).chain([(&totals.samples, &part.samples)]);
    counts.all(|(sum, more)| sum.checked_add(*more).is_some())
}

pub(crate) fn merge(totals: &mut Totals, part: Totals) {
    totals.samples += part.samples;
    add(&mut totals.counts, part.counts);
    add(&mut totals.losses, part.losses);
    add(&mut totals.scores, part.scores);
}

#[cfg(test)]
mod tests {
    use hetseq_balance::{CostTable, DeviceProfile, Line, Profile, RankProfile};
    use hetseq_comm::Options;

    use super::*;

    #[test]
    fn all_ranks_hold_what_rank_0_measured() {
        let measured = [2f64.exp(), 2f64.exp().next_up()];
        let groups = Group::local(2, &Options::default()).into_iter().zip(measured);
        let held: Vec<Vec<f64>> = std::thread::scope(|scope| {
            let ranks: Vec<_> = groups
                .map(|(mut group, mine)| {
                    scope.spawn(move || {
                        let held = as_rank_0(&mut group, vec![mine]).unwrap();
                        group.close();
                        held
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(held, [[measured[0]]; 2]);
    }

    #[test]
    fn counts_that_cannot_be_added_are_found() {
        let totals = |samples, count| Totals { samples, counts: vec![count], ..Totals::default() };
        assert!(can_merge(&totals(1, 2), &totals(3, u64::MAX - 2)));
        assert!(!can_merge(&totals(1, 2), &totals(3, u64::MAX - 1)));
        assert!(!can_merge(&totals(1, 2), &totals(u64::MAX, 1)));
        assert!(can_merge(&Totals::default(), &totals(u64::MAX, u64::MAX)));
    }

    #[test]
    fn micro_batches_are_no_larger_than_those_of_training() {
        let costs = Costs::PerSample(vec![10, 900, 30]);
        assert_eq!(usual_caps(GlobalBatch::Sequences(33), 4, &costs), (None, Some(9)));
        assert_eq!(usual_caps(GlobalBatch::Tokens(8000), 4, &costs), (Some(2000), None));
        // What one device has to take at least.
        assert_eq!(usual_caps(GlobalBatch::Tokens(2000), 4, &costs), (Some(900), None));
    }

    #[test]
    fn a_sample_longer_than_every_cap_is_computed_alone_where_most_fits() {
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
            line: Line::default(),
            own: None,
        };
        let profile = Profile { task: String::new(), parameters: 0, exchange_bytes: 0, ranks: vec![rank] };
        let mut planner = Planner::new(&profile);
        let plan = share(&mut planner, Split::Equal, &[20, 25, 70, 90]).unwrap();
        let micro: Vec<_> = plan.shares.iter().map(|share| share.micro.clone()).collect();
        assert!(micro[0].iter().all(|samples| samples.end <= 2), "{micro:?}");
        assert_eq!(micro[1][micro[1].len() - 2..], [2..3, 3..4]);
    }

    #[test]
    fn nothing_read_is_no_perfect_score() {
        let totals = |samples, counts| Totals { samples, counts, ..Totals::default() };
        assert_eq!(check(&totals(5, vec![0, 3]), 5, None), Ok(()));
        let torn = Skipped { sample: 1, reason: "a.jpg is torn".to_owned() };
        let refusal = check(&totals(5, vec![0]), 5, Some(&torn)).unwrap_err();
        assert_eq!(refusal, "none of the 5 validation samples could be used: a.jpg is torn");
        assert!(
            check(&totals(4, vec![4]), 5, None)
                .unwrap_err()
                .contains("4 validation samples were computed, there are 5")
        );
    }
}
