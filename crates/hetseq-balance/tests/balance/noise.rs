//! Updates on machines that run other programs. The scheduler sometimes delays a device, and shares
//! must not follow that. Lasting changes must be followed, in short and in long updates.

use std::collections::VecDeque;

use hetseq_balance::{
    CostPoint, CostTable, DeviceProfile, LinkProfile, Plan, Planner, Profile, RankProfile, Replanned, SplitMode,
    WorkTime,
};
use hetseq_random::Key;

const SAMPLES: usize = 100;

/// A process with two equal devices that computes updates, with one planned ahead.
struct Pair {
    planner: Planner,
    planned: VecDeque<Plan>,
    update: u64,
    seconds: f64,
}

/// The result of an update.
struct Step {
    /// Samples of the first device in the plan that was made during this update.
    planned: u64,
    replanned: Option<Replanned>,
    /// The time of the update without noise, and that time divided by the time if both finished
    /// together.
    lasting_s: f64,
    uneven: f64,
}

impl Pair {
    /// Each computes half of an update in `update_s`.
    fn new(update_s: f64) -> Pair {
        let micros = |samples: u32| (update_s * 1e6 * f64::from(samples) / (SAMPLES / 2) as f64) as u64;
        let point = |samples| CostPoint { samples, tokens: 1, micros: micros(samples), bytes: 0 };
        let device = DeviceProfile {
            name: String::new(),
            table: CostTable::new([1, 10, 100].map(point).to_vec()).unwrap(),
            after_s: 0.0,
            weight: 1.0,
            max_tokens: None,
            max_samples: None,
        };
        let devices = vec![device; 2];
        let rank = RankProfile {
            host: String::new(),
            devices,
            host_s: 0.0,
            link: LinkProfile::unlimited(),
            shard_weight: None,
        };
        let profile = Profile { task: String::new(), parameters: 0, exchange_bytes: 0, ranks: vec![rank] };
        let mut planner = Planner::new(&profile);
        let planned = VecDeque::from([planner.share(SplitMode::Measured, &[1; SAMPLES]).unwrap()]);
        Pair { planner, planned, update: 0, seconds: 0.0 }
    }

    /// Computes an update. Each device takes `slowness` times as long, plus a delay of
    /// `noise(update, device, its seconds)`.
    fn step(&mut self, slowness: [f64; 2], noise: &dyn Fn(u64, usize, f64) -> f64) -> Step {
        let next = self.planner.share(SplitMode::Measured, &[1; SAMPLES]).unwrap();
        let (planned, replanned) = (next.work[0].samples, next.replanned);
        self.planned.push_back(next);
        let work = self.planned.pop_front().unwrap().work;
        let (mut times, mut longest_s, mut without_noise_s) = (Vec::new(), 0.0f64, 0.0f64);
        for (device, work) in work.iter().enumerate() {
            let lasting_s = work.base_s * slowness[device];
            let seconds = lasting_s + noise(self.update, device, lasting_s);
            (longest_s, without_noise_s) = (longest_s.max(seconds), without_noise_s.max(lasting_s));
            times.push(WorkTime { base_s: work.base_s, micros: (seconds * 1e6) as u64, after_micros: 0 });
        }
        self.planner.observe(&times);
        let all_s: f64 = work.iter().map(|work| work.base_s).sum();
        let best_s = all_s / slowness.iter().map(|slowness| 1.0 / slowness).sum::<f64>();
        self.update += 1;
        self.seconds += longest_s;
        Step { planned, replanned, lasting_s: without_noise_s, uneven: without_noise_s / best_s }
    }
}

/// With some probability another program delays an update by one or two time slices.
fn slices(key: Key, update: u64, device: usize) -> f64 {
    let key = key.name("slices").index(update).index(device as u64);
    if key.unit(0) < 0.3 { f64::from(key.between(1, 0.004, 0.010)) } else { 0.0 }
}

/// Another program uses a device for a few updates.
fn periods(key: Key, update: u64, device: usize) -> f64 {
    let is_busy = |began: u64| {
        let key = key.name("periods").index(began).index(device as u64);
        key.unit(0) < 0.06 && update - began < 2 + key.below(1, 5)
    };
    let began = (update.saturating_sub(6)..=update).any(is_busy);
    let key = key.name("delays").index(update).index(device as u64);
    if began { f64::from(key.between(0, 0.004, 0.010)) } else { 0.0 }
}

/// Another program sometimes takes a core for long; often both cores, one after the other.
fn bursts(key: Key, update: u64, device: usize) -> f64 {
    let key = key.name("bursts");
    let at = |update: u64, device: usize| {
        let key = key.index(update).index(device as u64);
        if key.unit(0) < 0.02 { f64::from(key.between(1, 0.050, 0.100)) } else { 0.0 }
    };
    let follows = update > 0 && key.index(update).unit(7) < 0.5;
    at(update, device) + if follows { at(update - 1, 1 - device) } else { 0.0 }
}

/// Normal noise with a standard deviation of `part` of the time.
fn jitter(key: Key, update: u64, device: usize, seconds: f64, part: f64) -> f64 {
    let normal = key.name("jitter").index(device as u64).normal(update);
    seconds * part * f64::from(normal.clamp(-4.0, 4.0))
}

/// The noise of a machine without other programs.
fn quiet(seed: u64) -> impl Fn(u64, usize, f64) -> f64 {
    move |update, device, seconds| jitter(Key::root(seed), update, device, seconds, 0.05)
}

#[test]
fn scheduler_noise_in_short_updates_hardly_changes_the_plan() {
    type Noise = fn(Key, u64, usize) -> f64;
    let all: Noise =
        |key, update, device| slices(key, update, device) + periods(key, update, device) + bursts(key, update, device);
    let kinds: [(&str, Noise); 4] = [("slices", slices), ("periods", periods), ("bursts", bursts), ("all", all)];
    let mut worst = Vec::new();
    for update_s in [0.002, 0.005, 0.015, 0.05] {
        for (kind, noise) in kinds {
            let (mut most, mut furthest) = (0, 0);
            for seed in 0..12 {
                let (mut pair, key) = (Pair::new(update_s), Key::root(seed));
                let noise =
                    |update, device, seconds| noise(key, update, device) + jitter(key, update, device, seconds, 0.02);
                let mut replans = 0;
                for _ in 0..600 {
                    let step = pair.step([1.0; 2], &noise);
                    replans += u32::from(step.replanned.is_some());
                    furthest = furthest.max(step.planned.abs_diff(SAMPLES as u64 / 2));
                }
                most = most.max(replans);
            }
            worst.push((update_s, kind, most, furthest));
        }
    }
    assert!(worst.iter().all(|&(_, _, replans, furthest)| replans <= 5 && furthest <= 10), "{worst:?}");
}

/// The number of updates, and seconds, until the plan fits a change in update `at`: from then on
/// five updates in a row take at most `within` times the optimum.
fn followed(
    update_s: f64,
    slowness: [f64; 2],
    within: f64,
    at: u64,
    noise: &dyn Fn(u64, usize, f64) -> f64,
) -> (u64, f64) {
    let mut pair = Pair::new(update_s);
    for _ in 0..at {
        pair.step([1.0; 2], noise);
    }
    let (mut fits, mut followed_s, changed_s) = (0, 0.0, pair.seconds);
    while fits < 5 {
        assert!(pair.update < at + 2000, "a change to {slowness:?} in updates of {update_s} s is not followed");
        if fits == 0 {
            followed_s = pair.seconds - changed_s;
        }
        fits = if pair.step(slowness, noise).uneven < within { fits + 1 } else { 0 };
    }
    (pair.update - 5 - at, followed_s)
}

/// Large changes in updates of each length: the length, the devices' slowness, a seed of the noise.
fn large_changes(updates_s: &[f64]) -> impl Iterator<Item = (f64, [f64; 2], u64)> {
    let slownesses = [[4.0, 1.0], [2.0, 1.0], [1.0, 0.25], [0.5, 1.0]];
    let changes = slownesses.into_iter().flat_map(|slowness| (0..12).map(move |seed| (slowness, seed)));
    updates_s.iter().flat_map(move |&update_s| changes.clone().map(move |(slowness, seed)| (update_s, slowness, seed)))
}

#[test]
fn large_changes_in_long_updates_are_followed_within_five_updates() {
    for (update_s, slowness, seed) in large_changes(&[0.1, 0.2, 1.0]) {
        let (updates, _) = followed(update_s, slowness, 1.15, 30, &quiet(seed));
        assert!(updates <= 5, "{slowness:?} in updates of {update_s} s, seed {seed}: {updates} updates");
    }
}

#[test]
fn a_device_that_recovers_after_a_few_updates_is_followed_too() {
    for update_s in [0.2, 1.0] {
        for seed in 0..12 {
            let noise = quiet(seed);
            let mut pair = Pair::new(update_s);
            for update in 0..45 {
                let slowness = if (15..30).contains(&update) { [3.3, 1.0] } else { [1.0; 2] };
                let step = pair.step(slowness, &noise);
                let is_late = (20..30).contains(&update) || update >= 35;
                assert!(
                    !is_late || step.uneven < 1.15,
                    "update {update} of {update_s} s, seed {seed}: {}",
                    step.uneven
                );
            }
        }
    }
}

#[test]
fn smaller_changes_in_long_updates_are_followed() {
    for update_s in [0.2, 1.0] {
        for slowness in [[1.3, 1.0], [1.0, 0.75]] {
            let updates = |seed| followed(update_s, slowness, 1.08, 30, &quiet(seed)).0;
            let mut all: Vec<u64> = (0..20).map(updates).collect();
            all.sort_unstable();
            assert!(all[10] <= 5 && all[19] <= 25, "{slowness:?} in updates of {update_s} s: {all:?} updates");
        }
    }
}

#[test]
fn lasting_changes_in_short_updates_are_followed_in_about_a_second() {
    for (update_s, slowness, seed) in large_changes(&[0.005, 0.020]) {
        let quiet = quiet(seed);
        let (updates, seconds) = followed(update_s, slowness, 1.15, 600, &quiet);
        // Half a second of updates at normal speed.
        let is_soon = updates as f64 * update_s < 0.5 && seconds < 1.8;
        assert!(is_soon, "{slowness:?} in updates of {update_s} s, seed {seed}: {updates} updates, {seconds} s");
        let busy =
            |update, device, seconds| quiet(update, device, seconds) + 0.3 * periods(Key::root(seed), update, device);
        let (_, seconds) = followed(update_s, slowness, 1.25, 600, &busy);
        assert!(seconds < 5.0, "{slowness:?} in updates of {update_s} s, seed {seed}, busy: {seconds} s");
    }
}

#[test]
fn announced_gains_are_correct() {
    for (update_s, slowness, seed) in large_changes(&[0.005, 0.2]) {
        let noise = quiet(seed);
        let mut pair = Pair::new(update_s);
        for _ in 0..200 {
            assert!(pair.step([1.0; 2], &noise).replanned.is_none(), "nothing has changed yet");
        }
        let mut steps: Vec<Step> = (0..400).map(|_| pair.step(slowness, &noise)).collect();
        let announced: f64 = steps.iter().filter_map(|step| step.replanned).map(|new| 1.0 - new.gain).product();
        let gained = steps.pop().unwrap().lasting_s / steps[0].lasting_s;
        assert!(
            (announced - gained).abs() < 0.08,
            "{slowness:?}, {update_s} s: announced {announced}, gained {gained}"
        );
    }
}
