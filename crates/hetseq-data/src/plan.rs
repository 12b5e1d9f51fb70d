//! The plan: which samples form update `k` of an epoch.
//!
//! A pure function of (costs, seed, epoch, global batch, curriculum). It never sees a machine, so that a run may stop on
//! one set of machines and go on with another and still use each sample exactly once per epoch. Who computes what is
//! `hetseq-balance`'s business. Called by the trainer at the start of each epoch.
//!
//! The order of a shuffled epoch:
//! - samples of equal cost: a plain shuffle, cut into updates;
//! - samples of different cost: a shuffle; then windows of [`WINDOW_UPDATES`] updates, each sorted by length and cut, so
//!   that an update holds similar lengths; then the updates are shuffled, so that lengths do not come in waves.
//!
//! An unshuffled epoch (validation, or the curriculum) sorts all samples by length, ties in the order of the dataset,
//! and cuts them: short updates come first, padding is least, and samples of equal cost keep the dataset's order.
//!
//! Either way the samples of an update ascend in length, so that contiguous micro-batches pad little, and what is left
//! over after the last full update is kept as an update of its own. Counted in sequences, it is the last one.

mod batch;

use std::ops::Range;

use hetseq_random::Key;

pub use batch::GlobalBatch;

/// Updates per sorting window. Enough that one update spans about 1/64 of the lengths; few enough that a window of a
/// large dataset is a small part of it, so that each epoch meets new neighbours.
pub const WINDOW_UPDATES: usize = 64;

/// Tokens per sample. A cost of zero counts as one token, so that an update cannot grow without end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Costs {
    /// Every sample costs the same: images.
    Uniform { samples: usize, tokens: u32 },
    /// One cost per sample: text.
    PerSample(Vec<u32>),
    /// Samples of two sides that are padded each by itself: pairs of sentences. A plan counts `tokens`, both sides together. What a
    /// micro-batch computes is bounded by `padded`, twice the longer side: beside a pair with a long source and a short target
    /// there may be one with a short source and a long target.
    Pairs { tokens: Vec<u32>, padded: Vec<u32> },
}

impl Costs {
    pub fn samples(&self) -> usize {
        match self {
            Costs::Uniform { samples, .. } => *samples,
            Costs::PerSample(tokens) | Costs::Pairs { tokens, .. } => tokens.len(),
        }
    }

    /// The cost of one sample; zero for a sample that does not exist.
    pub fn tokens(&self, sample: u32) -> u32 {
        match self {
            Costs::Uniform { samples, tokens } if (sample as usize) < *samples => *tokens,
            Costs::Uniform { .. } => 0,
            Costs::PerSample(tokens) | Costs::Pairs { tokens, .. } => tokens.get(sample as usize).copied().unwrap_or(0),
        }
    }

    /// The length of one sample in a micro-batch: no micro-batch computes more tokens than its samples times the longest of them.
    pub fn padded(&self, sample: u32) -> u32 {
        match self {
            Costs::Pairs { padded, .. } => padded.get(sample as usize).copied().unwrap_or(0),
            _ => self.tokens(sample),
        }
    }

    /// The length of the longest sample in a micro-batch; zero without samples.
    pub fn longest(&self) -> u32 {
        match self {
            Costs::Uniform { samples: 0, .. } => 0,
            Costs::Uniform { tokens, .. } => *tokens,
            Costs::PerSample(tokens) | Costs::Pairs { padded: tokens, .. } => tokens.iter().copied().max().unwrap_or(0),
        }
    }

    /// The one cost that all samples have, if there is one.
    fn common(&self) -> Option<u32> {
        match self {
            Costs::Uniform { tokens, .. } => Some(*tokens),
            Costs::PerSample(tokens) | Costs::Pairs { tokens, .. } => {
                let first = tokens.first().copied().unwrap_or(0);
                tokens.iter().all(|&t| t == first).then_some(first)
            }
        }
    }
}

/// What a plan depends on besides the data and the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanSpec {
    pub seed: u64,
    pub batch: GlobalBatch,
    /// Epochs `0..curriculum_epochs` are not shuffled: the same updates each time, short (or early) samples first. This
    /// is what fairseq's `--curriculum N` does.
    pub curriculum_epochs: u64,
    /// False for validation: every epoch is then unshuffled.
    pub shuffle: bool,
}

/// The updates of one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochPlan {
    pub epoch: u64,
    samples: Vec<u32>,
    updates: Vec<Range<usize>>,
    padding: Padding,
}

/// One update: the samples that one optimizer step sums over, ascending in length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update<'a> {
    pub index_in_epoch: usize,
    pub samples: &'a [u32],
}

/// What an epoch costs, if each update were padded to its longest sample. Micro-batches pad less.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Padding {
    pub real_tokens: u64,
    pub padded_tokens: u64,
}

impl Padding {
    /// The part of all computed tokens that is padding: 0 (none) to 1.
    pub fn waste(&self) -> f64 {
        if self.padded_tokens == 0 {
            return 0.0;
        }
        1.0 - self.real_tokens as f64 / self.padded_tokens as f64
    }
}

impl EpochPlan {
    /// # Panics
    /// With more than `u32::MAX` samples. No source holds that many: idx counts in 32 bits, and drawn digits are fewer.
    pub fn new(costs: &Costs, spec: &PlanSpec, epoch: u64) -> EpochPlan {
        let count = costs.samples();
        assert!(u32::try_from(count).is_ok(), "a plan indexes samples with 32 bits, but there are {count}");
        let mut samples: Vec<u32> = (0..count as u32).collect();

        let shuffled = spec.shuffle && epoch >= spec.curriculum_epochs;
        let key = Key::root(spec.seed).name("plan").index(epoch);
        if shuffled {
            key.name("samples").shuffle(&mut samples);
        }

        let mut updates;
        if costs.common().is_some() {
            updates = Vec::with_capacity(count / samples_per_update(costs, spec.batch) + 1);
            cut(costs, spec.batch, &samples, 0..count, true, &mut updates);
        } else {
            let window = match shuffled {
                true => samples_per_update(costs, spec.batch).saturating_mul(WINDOW_UPDATES),
                false => count,
            };
            updates = cut_in_windows(costs, spec.batch, &mut samples, window);
            if shuffled {
                let full = updates.len() - usize::from(ends_short(spec.batch, &updates));
                key.name("updates").shuffle(&mut updates[..full]);
            }
        }

        let padding = padding(costs, &samples, &updates);
        EpochPlan { epoch, samples, updates, padding }
    }

    /// Updates in this epoch; zero only without samples.
    pub fn updates(&self) -> usize {
        self.updates.len()
    }

    /// Update `k` of this epoch. Past the end it is empty rather than a panic: `k` may come from a checkpoint.
    pub fn update(&self, k: usize) -> Update<'_> {
        let samples = self.updates.get(k).map_or(&[][..], |range| &self.samples[range.clone()]);
        Update { index_in_epoch: k, samples }
    }

    pub fn padding(&self) -> Padding {
        self.padding
    }

    /// A hash of (epoch, `k`, the samples of update `k`): ranks compare it before they compute anything.
    pub fn fingerprint(&self, k: usize) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.epoch.to_le_bytes());
        hasher.update(&(k as u64).to_le_bytes());
        let mut bytes = [0u8; 4 * 1024];
        for chunk in self.update(k).samples.chunks(1024) {
            for (slot, sample) in bytes.chunks_exact_mut(4).zip(chunk) {
                slot.copy_from_slice(&sample.to_le_bytes());
            }
            hasher.update(&bytes[..4 * chunk.len()]);
        }
        let mut word = [0u8; 8];
        word.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        u64::from_le_bytes(word)
    }
}

/// About how many samples one update holds; exact for a batch in sequences.
fn samples_per_update(costs: &Costs, batch: GlobalBatch) -> usize {
    match batch {
        GlobalBatch::Sequences(sequences) => sequences.max(1),
        GlobalBatch::Tokens(budget) => {
            let mean = match costs {
                Costs::Uniform { tokens, .. } => u64::from(*tokens),
                Costs::PerSample(tokens) | Costs::Pairs { tokens, .. } => {
                    tokens.iter().map(|&t| u64::from(t)).sum::<u64>() / tokens.len().max(1) as u64
                }
            };
            (budget as u64 / mean.max(1)).max(1) as usize
        }
    }
}

/// Sorts windows of `window` samples by length and cuts each into updates.
///
/// A window seldom ends with a full update. What is left over goes into the next window, so that only the epoch has a
/// short last update, not every window.
fn cut_in_windows(costs: &Costs, batch: GlobalBatch, samples: &mut [u32], window: usize) -> Vec<Range<usize>> {
    let mut updates = Vec::new();
    let mut sorted: Vec<u64> = Vec::new();
    let (mut start, mut end) = (0, 0);
    while end < samples.len() {
        end = samples.len().min(end.saturating_add(window.max(1)));
        sort_by_length(costs, &mut samples[start..end], &mut sorted);
        let is_last = end == samples.len();
        start = cut(costs, batch, samples, start..end, is_last, &mut updates);
    }
    updates
}

/// A stable sort by cost, as a sort of (cost, position) words: ties keep their order, which is the shuffled one, so that
/// samples of equal length are not always grouped with their neighbours in the dataset.
fn sort_by_length(costs: &Costs, samples: &mut [u32], words: &mut Vec<u64>) {
    words.clear();
    words.extend(samples.iter().enumerate().map(|(at, &s)| u64::from(costs.tokens(s)) << 32 | at as u64));
    words.sort_unstable();
    let sorted: Vec<u32> = words.iter().map(|word| samples[(word & 0xffff_ffff) as usize]).collect();
    samples.copy_from_slice(&sorted);
}

/// Cuts `range` of `samples`, ascending in length, into updates as full as the batch allows. Returns where the
/// unfinished rest begins; `keep_rest` makes that an update too.
fn cut(
    costs: &Costs,
    batch: GlobalBatch,
    samples: &[u32],
    range: Range<usize>,
    keep_rest: bool,
    updates: &mut Vec<Range<usize>>,
) -> usize {
    let mut start = range.start;
    for at in range.clone() {
        let count = at - start + 1;
        match batch {
            GlobalBatch::Sequences(sequences) => {
                if count >= sequences.max(1) {
                    updates.push(start..at + 1);
                    start = at + 1;
                }
            }
            // Ascending lengths: the newest sample is the longest, so it sets the width that all are padded to.
            GlobalBatch::Tokens(budget) => {
                let longest = u64::from(costs.tokens(samples[at]).max(1));
                if count > 1 && longest.saturating_mul(count as u64) > budget as u64 {
                    updates.push(start..at);
                    start = at;
                }
            }
        }
    }
    if keep_rest && start < range.end {
        updates.push(start..range.end);
        start = range.end;
    }
    start
}

/// Whether the last update is a rest of fewer sequences than the others. Updates of tokens all differ in count.
fn ends_short(batch: GlobalBatch, updates: &[Range<usize>]) -> bool {
    match (batch, updates.last()) {
        (GlobalBatch::Sequences(sequences), Some(last)) => last.len() < sequences,
        _ => false,
    }
}

fn padding(costs: &Costs, samples: &[u32], updates: &[Range<usize>]) -> Padding {
    let mut padding = Padding::default();
    for update in updates {
        let update = &samples[update.clone()];
        let longest = update.last().map_or(0, |&sample| costs.tokens(sample));
        padding.padded_tokens += u64::from(longest) * update.len() as u64;
        padding.real_tokens += match costs {
            Costs::Uniform { tokens, .. } => u64::from(*tokens) * update.len() as u64,
            Costs::PerSample(tokens) | Costs::Pairs { tokens, .. } => {
                update.iter().map(|&s| u64::from(tokens[s as usize])).sum()
            }
        };
    }
    padding
}
