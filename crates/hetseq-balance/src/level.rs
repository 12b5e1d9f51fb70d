//! A value that is measured block by block, and how exactly it is known. Pure; used by `drift`.

/// How long another program may delay each update, as assumed before anything was measured: a few time slices.
pub(crate) const SLICE_S: f64 = 0.01;
/// The window of smoothing: at least so long, and at least so many blocks.
const SMOOTH_S: f64 = 2.0;
const SMOOTH_BLOCKS: f64 = 8.0;
/// How many blocks the spread is measured over, and how many blocks the assumed one counts for.
const SPREAD_BLOCKS: u32 = 16;
const ASSUMED_BLOCKS: u32 = 4;

/// The median of the last three measurements is smoothed, so that a single outlier (a page-in, a stolen core) has no effect
/// at all. The first median counts fully, since three blocks tell more than a short probe; each further one moves the value
/// by less, so that noise has little effect and a slow change still has its own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Level {
    value: f64,
    /// The last measurements, the newest last.
    recent: [f64; 3],
    /// How many the value rests on.
    known: u32,
    /// The standard deviation of the value.
    error: f64,
    /// Whether the value rests on measurements.
    is_measured: bool,
}

impl Level {
    pub(crate) fn new(value: f64) -> Level {
        Level { value, recent: [value; 3], known: 0, error: 0.0, is_measured: false }
    }

    pub(crate) fn value(&self) -> f64 {
        self.value
    }

    pub(crate) fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// How far off the value may be: its standard deviation.
    pub(crate) fn error(&self) -> f64 {
        self.error
    }

    /// The value is the mean of `blocks` measurements, and nothing before them counts.
    pub(crate) fn set(&mut self, value: f64, blocks: u32, spread: Spread) {
        let error = spread.value() / f64::from(blocks.max(1)).sqrt();
        *self = Level { value, recent: [value; 3], known: blocks, error, is_measured: true };
    }

    /// The value counts fully, since what was known before means nothing.
    pub(crate) fn start(&mut self, value: f64) {
        *self = Level { value, recent: [value; 3], known: 1, error: 0.0, is_measured: true };
    }

    /// Takes in the mean of a block that lasted `block_s`.
    pub(crate) fn follow(&mut self, measured: f64, block_s: f64, spread: Spread) {
        self.recent.rotate_left(1);
        self.recent[2] = measured;
        self.known = self.known.saturating_add(1);
        if self.known >= 3 {
            let least = (block_s / SMOOTH_S).min(1.0 / SMOOTH_BLOCKS);
            let weight = (1.0 / f64::from(self.known - 2)).max(least);
            self.value += (median(self.recent) - self.value) * weight;
            self.error = spread.value() * weight.sqrt();
            self.is_measured = true;
        }
    }
}

/// How far measurements usually are from the value: the root mean square, in which rare long delays count.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Spread {
    square: f64,
    blocks: u32,
}

impl Spread {
    pub(crate) fn value(&self) -> f64 {
        self.square.sqrt()
    }

    /// The spread as long as nothing was measured.
    pub(crate) fn assume(&mut self, spread: f64) {
        if self.blocks == 0 {
            *self = Spread { square: spread * spread, blocks: ASSUMED_BLOCKS };
        }
    }

    pub(crate) fn follow(&mut self, off: f64) {
        self.blocks = (self.blocks + 1).min(SPREAD_BLOCKS);
        self.square += (off * off - self.square) / f64::from(self.blocks);
    }
}

fn median([a, b, c]: [f64; 3]) -> f64 {
    a.max(b).min(a.min(b).max(c))
}
