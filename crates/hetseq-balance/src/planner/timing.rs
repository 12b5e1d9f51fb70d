//! Timings of devices: which differences between adopted and latest timings are more than noise.
//!
//! Called by the planner only.

/// The relative change of a factor, and the change of an overhead as a part of an update, below
/// which a new plan cannot gain enough. If both change by at most d on every device, the earliest
/// finish of all and the time of the old plan change by at most 2 d each: at most 4 d are gained,
/// the dead band.
const TOO_LITTLE: f64 = 0.005;

/// A difference of up to this many standard deviations counts as noise; twice as many count fully.
const NOISE: f64 = 2.5;

/// A device's time relative to its table, and its overheads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DeviceTiming {
    /// The device's time divided by the time in its table.
    pub(super) factor: f64,
    /// After its micro-batches, if there were any.
    pub(super) after_s: f64,
    /// Of its rank, after all its devices are done.
    pub(super) rank_s: f64,
}

impl DeviceTiming {
    pub(super) fn overhead_s(&self) -> f64 {
        self.after_s + self.rank_s
    }

    /// The time at which it is done with work of `base_s` by the table, and its rank too if that
    /// waits for no other device.
    pub(super) fn finish_s(&self, base_s: f64) -> f64 {
        self.factor * base_s + self.overhead_s()
    }
}

/// The standard deviations of a timing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TimingError {
    /// Relative to the factor.
    pub(super) factor: f64,
    pub(super) after_s: f64,
    pub(super) rank_s: f64,
    pub(super) is_working: bool,
}

/// The adopted timings, moved to the latest where these differ by more than noise. Factors are
/// compared with those that a common change of all devices would give: a common change moves no
/// work.
pub(super) fn denoised(adopted: &[DeviceTiming], latest: &[DeviceTiming], errors: &[TimingError]) -> Vec<DeviceTiming> {
    let common = common_change(adopted, latest, errors);
    let denoise = |((old, new), error): ((&DeviceTiming, &DeviceTiming), &TimingError)| {
        let expected = old.factor * common;
        let off = if new.factor > expected { new.factor / expected } else { expected / new.factor } - 1.0;
        let seconds = |old: f64, new: f64, error_s: f64| old + (new - old) * significance((new - old).abs(), error_s);
        DeviceTiming {
            factor: expected + (new.factor - expected) * significance(off, error.factor),
            after_s: seconds(old.after_s, new.after_s, error.after_s),
            rank_s: seconds(old.rank_s, new.rank_s, error.rank_s),
        }
    };
    adopted.iter().zip(latest).zip(errors).map(denoise).collect()
}

/// The part of a difference that counts. All or nothing would adopt noise that just exceeds the
/// limit.
fn significance(difference: f64, error: f64) -> f64 {
    ((difference - NOISE * error) / (NOISE * error).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
}

/// The median slowdown of the working devices; 1 if none works.
fn common_change(adopted: &[DeviceTiming], latest: &[DeviceTiming], errors: &[TimingError]) -> f64 {
    let timings = adopted.iter().zip(latest).zip(errors).filter(|(_, error)| error.is_working);
    let mut changes: Vec<f64> = timings.map(|((old, new), _)| new.factor / old.factor).collect();
    let middle = changes.len() / 2;
    if changes.is_empty() {
        return 1.0;
    }
    let is_even = changes.len().is_multiple_of(2);
    let (below, &mut upper, _) = changes.select_nth_unstable_by(middle, f64::total_cmp);
    let lower = if is_even { below.iter().copied().fold(0.0, f64::max) } else { upper };
    0.5 * (lower + upper)
}

/// Whether the change is large enough for another plan to gain something.
pub(super) fn differ(adopted: &[DeviceTiming], other: &[DeviceTiming], update_s: f64) -> bool {
    let differs = |(old, new): (&DeviceTiming, &DeviceTiming)| {
        let by_factor = (new.factor - old.factor).abs() > old.factor * TOO_LITTLE;
        by_factor || (new.overhead_s() - old.overhead_s()).abs() > update_s * TOO_LITTLE
    };
    adopted.iter().zip(other).any(differs)
}

/// Devices to recheck, each with the factor that is assumed so that it gets a sample.
#[derive(Debug, Default)]
pub(super) struct Rechecks(Vec<(usize, f64)>);

impl Rechecks {
    pub(super) fn push(&mut self, device: usize, factor: f64) {
        self.0.push((device, factor));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The timings, with the assumed ones of the devices to recheck.
    pub(super) fn apply(&self, timings: &[DeviceTiming]) -> Vec<DeviceTiming> {
        let mut timings = timings.to_vec();
        for &(device, factor) in &self.0 {
            timings[device] = DeviceTiming { factor, after_s: 0.0, rank_s: 0.0 };
        }
        timings
    }
}
