//! A running estimate of a value that is measured block by block, and its standard deviation.
//! Pure; used by `drift`.

/// Delay of each update by other programs, assumed before anything is measured: a few time slices.
pub(crate) const SLICE_S: f64 = 0.01;
/// The smoothing window: at least this long, and at least this many blocks.
const SMOOTH_S: f64 = 2.0;
const SMOOTH_BLOCKS: f64 = 8.0;
/// The number of blocks that the spread is measured over, and how many the assumed spread counts
/// for.
const SPREAD_BLOCKS: u32 = 16;
const ASSUMED_BLOCKS: u32 = 4;

/// A smoothed median of the last three measurements.
///
/// The median removes a single outlier (a page-in, a stolen core) completely. The first median
/// counts fully, since three blocks are more reliable than a short probe. Each further one moves
/// the value by less: noise then has little effect, and a slow change is still followed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Estimate {
    value: f64,
    /// The last measurements, the newest last.
    recent: [f64; 3],
    /// The number of measurements behind the value.
    count: u32,
    /// The standard deviation of the value.
    error: f64,
    /// Whether the value is based on measurements.
    is_measured: bool,
}

impl Estimate {
    pub(crate) fn new(value: f64) -> Estimate {
        Estimate { value, recent: [value; 3], count: 0, error: 0.0, is_measured: false }
    }

    pub(crate) fn value(&self) -> f64 {
        self.value
    }

    pub(crate) fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// The standard deviation of the value.
    pub(crate) fn error(&self) -> f64 {
        self.error
    }

    /// Replaces the estimate by the mean of `blocks` measurements.
    pub(crate) fn set(&mut self, value: f64, blocks: u32, spread: Spread) {
        let error = spread.value() / f64::from(blocks.max(1)).sqrt();
        *self = Estimate { value, recent: [value; 3], count: blocks, error, is_measured: true };
    }

    /// Replaces the estimate by a first measurement.
    pub(crate) fn start(&mut self, value: f64) {
        *self = Estimate { value, recent: [value; 3], count: 1, error: 0.0, is_measured: true };
    }

    /// Adds the mean of a block that lasted `block_s`.
    pub(crate) fn add(&mut self, measured: f64, block_s: f64, spread: Spread) {
        self.recent.rotate_left(1);
        self.recent[2] = measured;
        self.count = self.count.saturating_add(1);
        if self.count >= 3 {
            let least = (block_s / SMOOTH_S).min(1.0 / SMOOTH_BLOCKS);
            let weight = (1.0 / f64::from(self.count - 2)).max(least);
            self.value += (median(self.recent) - self.value) * weight;
            self.error = spread.value() * weight.sqrt();
            self.is_measured = true;
        }
    }
}

/// The usual distance of a measurement from the value: the root mean square, so that rare long
/// delays count.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Spread {
    mean_square: f64,
    blocks: u32,
}

impl Spread {
    pub(crate) fn value(&self) -> f64 {
        self.mean_square.sqrt()
    }

    /// Sets the spread if nothing was measured yet.
    pub(crate) fn assume(&mut self, spread: f64) {
        if self.blocks == 0 {
            *self = Spread { mean_square: spread * spread, blocks: ASSUMED_BLOCKS };
        }
    }

    pub(crate) fn add(&mut self, deviation: f64) {
        self.blocks = (self.blocks + 1).min(SPREAD_BLOCKS);
        self.mean_square += (deviation * deviation - self.mean_square) / f64::from(self.blocks);
    }
}

fn median([a, b, c]: [f64; 3]) -> f64 {
    a.max(b).min(a.min(b).max(c))
}
