//! What plans are made by: how long each device takes, as of the last time that it was published.
//!
//! Called by the planner only.

/// How little a factor may change, relatively, and an overhead, as a part of an update, so that nothing can be gained. If no
/// device changes by more than d, neither does the earliest time for all, nor what the plan takes: at most 2 d are gained,
/// twice, which is the dead band.
const TOO_LITTLE: f64 = 0.005;

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
