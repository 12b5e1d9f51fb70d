//! The plan: which samples form update `k` of an epoch.
//!
//! A pure function of (lengths, seed, epoch, global batch, curriculum). It does not depend on the
//! machines, so a run may stop on one set of machines, resume on another, and still use each sample
//! exactly once per epoch. `hetseq-balance` decides which device computes which samples. Called by
//! the trainer at the start of each epoch.
//!
//! The order of a shuffled epoch:
//! - Samples of equal length: a plain shuffle, cut into updates.
//! - Samples of different lengths: a shuffle; then windows of [`WINDOW_UPDATES`] updates, each
//!   sorted by length and cut, so that an update holds similar lengths; then a shuffle of the
//!   updates, so that lengths do not rise and fall periodically.
//!
//! An unshuffled epoch (validation, or the curriculum) sorts all samples by length, with ties in
//! dataset order, and cuts them. Short updates come first, padding is minimal, and samples of equal
//! length keep the dataset order.
//!
//! In both cases the samples of an update ascend in length, so that contiguous micro-batches have
//! little padding. The samples left after the last full update form a smaller update; if the batch
//! is counted in sequences, it is the last one.

mod global_batch;

use std::ops::Range;

use hetseq_random::Key;

pub use global_batch::GlobalBatch;

/// Updates per sorting window. Large enough that one update spans about 1/64 of the lengths. Small
/// enough that a window is a small part of a large dataset, so that the samples that share an
/// update change from epoch to epoch.
pub const WINDOW_UPDATES: usize = 64;

/// Tokens per sample. A length of zero counts as one token, so that an update cannot grow without
/// limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SampleLengths {
    /// All samples have the same length: images.
    Uniform { samples: usize, tokens: u32 },
    /// One length per sample: text.
    PerSample(Vec<u32>),
    /// Samples with two sides that are padded separately: pairs of sentences. A plan counts
    /// `tokens`, the sum of both sides. The work of a micro-batch is bounded by `padded`, twice the
    /// longer side: a micro-batch may hold a pair with a long source and a short target beside a
    /// pair with a short source and a long target.
    Pairs { tokens: Vec<u32>, padded: Vec<u32> },
}

impl SampleLengths {
    pub fn samples(&self) -> usize {
        match self {
            SampleLengths::Uniform { samples, .. } => *samples,
            SampleLengths::PerSample(tokens) | SampleLengths::Pairs { tokens, .. } => tokens.len(),
        }
    }

    /// The length of one sample; zero for a sample that does not exist.
    pub fn tokens(&self, sample: u32) -> u32 {
        match self {
            SampleLengths::Uniform { samples, tokens } if (sample as usize) < *samples => *tokens,
            SampleLengths::Uniform { .. } => 0,
            SampleLengths::PerSample(tokens) | SampleLengths::Pairs { tokens, .. } => {
                tokens.get(sample as usize).copied().unwrap_or(0)
            }
        }
    }

    /// The padded length of one sample. A micro-batch computes at most its number of samples times
    /// the largest padded length in it.
    pub fn padded(&self, sample: u32) -> u32 {
        match self {
            SampleLengths::Pairs { padded, .. } => padded.get(sample as usize).copied().unwrap_or(0),
            _ => self.tokens(sample),
        }
    }

    /// The largest padded length; zero without samples.
    pub fn longest(&self) -> u32 {
        match self {
            SampleLengths::Uniform { samples: 0, .. } => 0,
            SampleLengths::Uniform { tokens, .. } => *tokens,
            SampleLengths::PerSample(tokens) | SampleLengths::Pairs { padded: tokens, .. } => {
                tokens.iter().copied().max().unwrap_or(0)
            }
        }
    }

    /// The length that all samples share, if they do.
    fn common(&self) -> Option<u32> {
        match self {
            SampleLengths::Uniform { tokens, .. } => Some(*tokens),
            SampleLengths::PerSample(tokens) | SampleLengths::Pairs { tokens, .. } => {
                let first = tokens.first().copied().unwrap_or(0);
                tokens.iter().all(|&t| t == first).then_some(first)
            }
        }
    }
}

/// The settings of a plan, besides the data and the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanSpec {
    pub seed: u64,
    pub batch: GlobalBatch,
    /// Epochs `0..curriculum_epochs` are not shuffled: the same updates each time, short (or early)
    /// samples first. Same as fairseq's `--curriculum N`.
    pub curriculum_epochs: u64,
    /// False for validation: no epoch is shuffled.
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

/// One update: the samples of one optimizer step, ascending in length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update<'a> {
    pub index_in_epoch: usize,
    pub samples: &'a [u32],
}

/// The tokens of an epoch if each update were padded to its longest sample. Micro-batches pad less.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Padding {
    pub real_tokens: u64,
    pub padded_tokens: u64,
}

impl Padding {
    /// The fraction of all computed tokens that is padding: 0 (none) to 1.
    pub fn waste(&self) -> f64 {
        if self.padded_tokens == 0 {
            return 0.0;
        }
        1.0 - self.real_tokens as f64 / self.padded_tokens as f64
    }
}

impl EpochPlan {
    /// Plans an epoch.
    ///
    /// # Panics
    /// If there are more than `u32::MAX` samples. No source holds that many: idx counts in 32 bits,
    /// and there are fewer drawn digits.
    pub fn new(lengths: &SampleLengths, spec: &PlanSpec, epoch: u64) -> EpochPlan {
        let count = lengths.samples();
        assert!(u32::try_from(count).is_ok(), "a plan indexes samples with 32 bits, but there are {count}");
        let mut samples: Vec<u32> = (0..count as u32).collect();

        let shuffled = spec.shuffle && epoch >= spec.curriculum_epochs;
        let key = Key::root(spec.seed).name("plan").index(epoch);
        if shuffled {
            key.name("samples").shuffle(&mut samples);
        }

        let mut updates;
        if lengths.common().is_some() {
            updates = Vec::with_capacity(count / samples_per_update(lengths, spec.batch) + 1);
            cut(lengths, spec.batch, &samples, 0..count, true, &mut updates);
        } else {
            let window = match shuffled {
                true => samples_per_update(lengths, spec.batch).saturating_mul(WINDOW_UPDATES),
                false => count,
            };
            updates = cut_in_windows(lengths, spec.batch, &mut samples, window);
            if shuffled {
                let full = updates.len() - usize::from(ends_short(spec.batch, &updates));
                key.name("updates").shuffle(&mut updates[..full]);
            }
        }

        let padding = padding(lengths, &samples, &updates);
        EpochPlan { epoch, samples, updates, padding }
    }

    /// The number of updates in this epoch; zero only without samples.
    pub fn updates(&self) -> usize {
        self.updates.len()
    }

    /// Update `k` of this epoch. Past the end it is empty; it does not panic, because `k` may come
    /// from a checkpoint.
    pub fn update(&self, k: usize) -> Update<'_> {
        let samples = self.updates.get(k).map_or(&[][..], |range| &self.samples[range.clone()]);
        Update { index_in_epoch: k, samples }
    }

    pub fn padding(&self) -> Padding {
        self.padding
    }

    /// A hash of (epoch, `k`, the samples of update `k`). Ranks compare it before they compute.
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

/// The approximate number of samples per update; exact for a batch in sequences.
fn samples_per_update(lengths: &SampleLengths, batch: GlobalBatch) -> usize {
    match batch {
        GlobalBatch::Sequences(sequences) => sequences.max(1),
        GlobalBatch::Tokens(budget) => {
            let mean = match lengths {
                SampleLengths::Uniform { tokens, .. } => u64::from(*tokens),
                SampleLengths::PerSample(tokens) | SampleLengths::Pairs { tokens, .. } => {
                    tokens.iter().map(|&t| u64::from(t)).sum::<u64>() / tokens.len().max(1) as u64
                }
            };
            (budget as u64 / mean.max(1)).max(1) as usize
        }
    }
}

/// Sorts windows of `window` samples by length and cuts each into updates.
///
/// A window rarely ends with a full update. The remaining samples go into the next window, so that
/// only the epoch has a short last update, not every window.
fn cut_in_windows(
    lengths: &SampleLengths,
    batch: GlobalBatch,
    samples: &mut [u32],
    window: usize,
) -> Vec<Range<usize>> {
    let mut updates = Vec::new();
    let mut sorted: Vec<u64> = Vec::new();
    let (mut start, mut end) = (0, 0);
    while end < samples.len() {
        end = samples.len().min(end.saturating_add(window.max(1)));
        sort_by_length(lengths, &mut samples[start..end], &mut sorted);
        let is_last = end == samples.len();
        start = cut(lengths, batch, samples, start..end, is_last, &mut updates);
    }
    updates
}

/// A stable sort by length, as a sort of (length, position) words. Ties keep their shuffled order,
/// so that samples of equal length are not always grouped with their neighbours in the dataset.
fn sort_by_length(lengths: &SampleLengths, samples: &mut [u32], words: &mut Vec<u64>) {
    words.clear();
    words.extend(samples.iter().enumerate().map(|(at, &s)| u64::from(lengths.tokens(s)) << 32 | at as u64));
    words.sort_unstable();
    let sorted: Vec<u32> = words.iter().map(|word| samples[(word & 0xffff_ffff) as usize]).collect();
    samples.copy_from_slice(&sorted);
}

/// Cuts `range` of `samples`, ascending in length, into updates as full as the batch allows.
/// Returns the start of the incomplete rest; with `keep_rest` the rest becomes an update too.
fn cut(
    lengths: &SampleLengths,
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
            // Lengths ascend, so the last sample is the longest: all are padded to its length.
            GlobalBatch::Tokens(budget) => {
                let longest = u64::from(lengths.tokens(samples[at]).max(1));
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

/// Whether the last update has fewer sequences than the others. Updates counted in tokens all
/// differ in their number of samples.
fn ends_short(batch: GlobalBatch, updates: &[Range<usize>]) -> bool {
    match (batch, updates.last()) {
        (GlobalBatch::Sequences(sequences), Some(last)) => last.len() < sequences,
        _ => false,
    }
}

fn padding(lengths: &SampleLengths, samples: &[u32], updates: &[Range<usize>]) -> Padding {
    let mut padding = Padding::default();
    for update in updates {
        let update = &samples[update.clone()];
        let longest = update.last().map_or(0, |&sample| lengths.tokens(sample));
        padding.padded_tokens += u64::from(longest) * update.len() as u64;
        padding.real_tokens += match lengths {
            SampleLengths::Uniform { tokens, .. } => u64::from(*tokens) * update.len() as u64,
            SampleLengths::PerSample(tokens) | SampleLengths::Pairs { tokens, .. } => {
                update.iter().map(|&s| u64::from(tokens[s as usize])).sum()
            }
        };
    }
    padding
}
