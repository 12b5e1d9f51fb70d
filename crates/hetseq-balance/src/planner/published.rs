//! What plans are made by: how long each device takes, as of the last time that it was published.
//!
//! Called by the planner only.

/// How little a factor may change, relatively, and an overhead, as a part of an update, so that nothing can be gained. If no
/// device changes by more than d, neither does the earliest time for all, nor what the plan takes: at most 2 d are gained,
/// twice, which is the dead band.
const TOO_LITTLE: f64 = 0.005;

/// A difference of up to so many standard deviations counts as noise, and one of twice as many counts fully.
const NOISE: f64 = 2.5;

/// What a device takes beside what its table says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    /// So many times as long as by the table.
    pub(super) factor: f64,
    /// After its micro-batches, if there were any.
    pub(super) after_s: f64,
    /// Of its rank, after all its devices are done.
    pub(super) rank_s: f64,
}

impl Pace {
    pub(super) fn overhead_s(&self) -> f64 {
        self.after_s + self.rank_s
    }

    /// When it, and its rank if it waits for no other device, is done with what takes so long by the table.
    pub(super) fn finish_s(&self, base_s: f64) -> f64 {
        self.factor * base_s + self.overhead_s()
    }
}

/// How far off a pace may be: standard deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PaceError {
    /// Relative to the factor.
    pub(super) factor: f64,
    pub(super) after_s: f64,
    pub(super) rank_s: f64,
    pub(super) is_working: bool,
}

/// The published paces, moved to the newest where those differ by more than noise. Factors are compared with what they would be
/// if all devices had changed alike: a common change moves no work from one to the other.
pub(super) fn believed(published: &[Pace], newest: &[Pace], errors: &[PaceError]) -> Vec<Pace> {
    let common = common_change(published, newest, errors);
    let believe = |((old, new), error): ((&Pace, &Pace), &PaceError)| {
        let alike = old.factor * common;
        let off = if new.factor > alike { new.factor / alike } else { alike / new.factor } - 1.0;
        let seconds = |old: f64, new: f64, error_s: f64| old + (new - old) * belief((new - old).abs(), error_s);
        Pace {
            factor: alike + (new.factor - alike) * belief(off, error.factor),
            after_s: seconds(old.after_s, new.after_s, error.after_s),
            rank_s: seconds(old.rank_s, new.rank_s, error.rank_s),
        }
    };
    published.iter().zip(newest).zip(errors).map(believe).collect()
}

/// Which part of a difference is believed. All or nothing would publish the noise that just exceeds the limit.
fn belief(difference: f64, error: f64) -> f64 {
    ((difference - NOISE * error) / (NOISE * error).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
}

/// How many times as slow the middle one of the working devices has become; 1 if none works.
fn common_change(published: &[Pace], newest: &[Pace], errors: &[PaceError]) -> f64 {
    let paces = published.iter().zip(newest).zip(errors).filter(|(_, error)| error.is_working);
    let mut changes: Vec<f64> = paces.map(|((old, new), _)| new.factor / old.factor).collect();
    let middle = changes.len() / 2;
    if changes.is_empty() {
        return 1.0;
    }
    let is_even = changes.len().is_multiple_of(2);
    let (below, &mut upper, _) = changes.select_nth_unstable_by(middle, f64::total_cmp);
    let lower = if is_even { below.iter().copied().fold(0.0, f64::max) } else { upper };
    0.5 * (lower + upper)
}

/// Whether so much has changed that another plan may gain something.
pub(super) fn differ(published: &[Pace], newest: &[Pace], update_s: f64) -> bool {
    let differs = |(old, new): (&Pace, &Pace)| {
        let by_factor = (new.factor - old.factor).abs() > old.factor * TOO_LITTLE;
        by_factor || (new.overhead_s() - old.overhead_s()).abs() > update_s * TOO_LITTLE
    };
    published.iter().zip(newest).any(differs)
}

/// Devices that get a sample to see how fast they are, and the factor that each is believed to have for that.
#[derive(Debug, Default)]
pub(super) struct LookedAt(Vec<(usize, f64)>);

impl LookedAt {
    pub(super) fn push(&mut self, device: usize, factor: f64) {
        self.0.push((device, factor));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The paces with those of the devices that are looked at.
    pub(super) fn apply(&self, paces: &[Pace]) -> Vec<Pace> {
        let mut paces = paces.to_vec();
        for &(device, factor) in &self.0 {
            paces[device] = Pace { factor, after_s: 0.0, rank_s: 0.0 };
        }
        paces
    }
}
