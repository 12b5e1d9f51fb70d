//! Cuts text into segments, one per sample. The cuts are the same in every epoch, so that the
//! number of samples and their lengths are known. Called by `text_samples`.
//!
//! Each document is cut from start to end into segments of whole sentences, as many as fit. Nothing
//! is left out and nothing is used twice. A sentence that is too long by itself is cut. With some
//! probability a segment is made short on purpose. Segments are numbered by *class*, short ones
//! first. The samples of a class have similar lengths and the same [`Boundaries`], so that an
//! exchange of halves does not show; see [`segment_pairs`](super::segment_pairs).

use std::ops::{Range, RangeInclusive};

use hetseq_random::Key;
use rayon::prelude::*;

use super::config::PretrainConfig;
use crate::error::{CorpusError, DataError};
use crate::source::corpus::TextCorpus;
use crate::source::tokens::TokenShard;

/// Tokens per length class, special tokens included: a row width that devices handle well.
const CLASS_TOKENS: usize = 16;

/// The location of a sample's text. Eight bytes, because there are many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) shard: u16,
    pub(super) length: u16,
    /// Its first token in the shard.
    pub(super) start: u32,
}

impl Segment {
    pub(super) fn tokens(&self) -> Range<usize> {
        self.start as usize..self.start as usize + usize::from(self.length)
    }
}

/// All segments of a corpus, ordered by class.
#[derive(Debug)]
pub(super) struct Segments {
    segments: Vec<Segment>,
    classes: Vec<LengthClass>,
}

/// How a segment's boundaries relate to sentences. Only segments with equal boundaries exchange
/// halves: a first half that stops inside a sentence, followed by a half that starts a sentence,
/// would show that the halves do not belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Boundaries {
    /// No sentence ends inside the segment, so its halves are split inside a sentence.
    pub(super) splits_inside: bool,
    /// The segment's last sentence continues in the next segment.
    pub(super) ends_inside: bool,
}

impl Boundaries {
    /// All values, each at its [`index`](Boundaries::index).
    const ALL: [Boundaries; 4] = [
        Boundaries { splits_inside: false, ends_inside: false },
        Boundaries { splits_inside: true, ends_inside: false },
        Boundaries { splits_inside: false, ends_inside: true },
        Boundaries { splits_inside: true, ends_inside: true },
    ];

    fn index(self) -> usize {
        usize::from(self.splits_inside) + 2 * usize::from(self.ends_inside)
    }
}

/// The common properties of the samples of a class.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LengthClass {
    pub(super) samples: Range<u32>,
    /// The range of their text lengths, also after an exchange.
    pub(super) lengths: RangeInclusive<usize>,
    pub(super) boundaries: Boundaries,
    /// The probability that two of them are from one document.
    pub(super) same_document: f64,
}

impl Segments {
    pub(super) fn cut(corpus: &TextCorpus, config: &PretrainConfig) -> Result<Self, DataError> {
        if corpus.shards().len() > usize::from(u16::MAX) {
            let (dir, shards) = (corpus.dir().to_owned(), corpus.shards().len());
            return Err(CorpusError::TooManyShards { dir, shards }.into());
        }
        let shards = corpus.shards().par_iter().enumerate();
        let cut: Vec<CutShard> = shards.map(|(at, shard)| CutShard::new(at as u16, shard, config)).collect();
        let samples: u64 = cut.iter().map(|shard| shard.segments.len() as u64).sum();
        if samples >= u64::from(u32::MAX) {
            return Err(CorpusError::TooManySamples { dir: corpus.dir().to_owned(), samples }.into());
        }
        let mut classes = Vec::new();
        let mut start = 0;
        for class in 0..class_count(config) {
            let total = |of: fn(&CutShard) -> &[u64]| cut.iter().map(|shard| of(shard)[class]).sum::<u64>();
            let (count, same_document) = (total(|shard| &shard.counts), total(|shard| &shard.same_document_pairs));
            let pairs = count as f64 * (count as f64 - 1.0) / 2.0;
            classes.push(LengthClass {
                samples: start..start + count as u32,
                lengths: class_lengths(class, config),
                boundaries: Boundaries::ALL[class % Boundaries::ALL.len()],
                same_document: if pairs > 0.0 { same_document as f64 / pairs } else { 1.0 },
            });
            start += count as u32;
        }
        let mut next: Vec<usize> = classes.iter().map(|class| class.samples.start as usize).collect();
        let mut segments = vec![Segment { shard: 0, length: 0, start: 0 }; samples as usize];
        for (segment, boundaries) in cut.into_iter().flat_map(|shard| shard.segments) {
            let id = &mut next[class_of(usize::from(segment.length), boundaries, config)];
            segments[*id] = segment;
            *id += 1;
        }
        Ok(Segments { segments, classes })
    }

    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    pub(super) fn get(&self, sample: u32) -> Option<Segment> {
        self.segments.get(sample as usize).copied()
    }

    /// The class of a sample. None if there is no such sample.
    pub(super) fn class(&self, sample: u32) -> Option<&LengthClass> {
        self.classes.get(self.classes.partition_point(|class| class.samples.end <= sample))
    }

    /// Upper bounds of the samples' text lengths, in order of sample id: a sample's own length if
    /// samples do not exchange, else the largest length of its class.
    pub(super) fn bounds(&self, exchanges: bool) -> impl Iterator<Item = usize> + '_ {
        self.classes.iter().flat_map(move |class| {
            let own = self.segments[class.samples.start as usize..class.samples.end as usize].iter();
            own.map(move |segment| if exchanges { *class.lengths.end() } else { usize::from(segment.length) })
        })
    }
}

fn class_count(config: &PretrainConfig) -> usize {
    config.max_seq_length.div_ceil(CLASS_TOKENS) * Boundaries::ALL.len()
}

fn class_of(length: usize, boundaries: Boundaries, config: &PretrainConfig) -> usize {
    ((length + config.special_tokens()).div_ceil(CLASS_TOKENS) - 1) * Boundaries::ALL.len() + boundaries.index()
}

/// The text lengths of the samples of a class.
fn class_lengths(class: usize, config: &PretrainConfig) -> RangeInclusive<usize> {
    let (shorter, special) = (class / Boundaries::ALL.len() * CLASS_TOKENS, config.special_tokens());
    let min = (shorter + 1).saturating_sub(special).max(1);
    min..=(shorter + CLASS_TOKENS - special).min(config.max_text_tokens())
}

/// The segments of a shard, in the order of the text.
struct CutShard {
    segments: Vec<(Segment, Boundaries)>,
    /// The number of segments per class.
    counts: Vec<u64>,
    /// The number of pairs per class whose segments are from one document.
    same_document_pairs: Vec<u64>,
}

impl CutShard {
    fn new(at: u16, shard: &TokenShard, config: &PretrainConfig) -> Self {
        let key = Key::root(config.cut_seed).name("segments").index(u64::from(at));
        let (max, zeros) = (config.max_text_tokens(), vec![0; class_count(config)]);
        let segments = Vec::with_capacity(shard.tokens() / max + shard.documents());
        let mut cut = CutShard { segments, counts: zeros.clone(), same_document_pairs: zeros.clone() };
        let mut before = zeros;
        let mut first = 0;
        for document in 0..shard.documents() {
            let end = shard.document_end(document);
            before.copy_from_slice(&cut.counts);
            cut_document(
                shard,
                first..end,
                max,
                config.short_seq_prob,
                key.index(document as u64),
                |tokens, boundaries| {
                    let class = class_of(tokens.len(), boundaries, config);
                    cut.same_document_pairs[class] += cut.counts[class] - before[class];
                    cut.counts[class] += 1;
                    let segment = Segment { shard: at, length: tokens.len() as u16, start: tokens.start as u32 };
                    cut.segments.push((segment, boundaries));
                },
            );
            first = end;
        }
        cut
    }
}

/// Cuts a document, given as a range of sentences.
fn cut_document(
    shard: &TokenShard,
    sentences: Range<usize>,
    max: usize,
    short_seq_prob: f64,
    key: Key,
    mut found: impl FnMut(Range<usize>, Boundaries),
) {
    let Some(last) = sentences.end.checked_sub(1) else { return };
    let document_end = shard.sentence_end(last);
    let mut start = sentences.start.checked_sub(1).map_or(0, |before| shard.sentence_end(before));
    let mut sentence = sentences.start;
    let mut count = 0;
    while start < document_end {
        let is_short = f64::from(key.unit(2 * count)) < short_seq_prob;
        let target = if is_short { 2 + key.below(u64::from(2 * count + 1), max as u64 - 1) as usize } else { max };
        count += 1;
        // All sentences that end within the target, but at least the first one if it fits into
        // `max`. A sample needs two tokens, because it is split into two segments.
        let (mut end, first) = (start, sentence);
        while sentence < sentences.end {
            let sentence_end = shard.sentence_end(sentence);
            let limit = if end - start < 2 { max } else { target };
            if sentence_end - start > limit {
                break;
            }
            end = sentence_end;
            sentence += 1;
        }
        if end - start < 2 {
            end = (start + max).min(document_end);
        }
        // A single token must not remain at the end of the document. It is added to this segment if
        // it fits; otherwise this segment leaves two tokens.
        if document_end - end == 1 && end - start < max {
            (end, sentence) = (document_end, sentences.end);
        } else if document_end - end == 1 {
            end -= 1;
            sentence -= usize::from(sentence > sentences.start && shard.sentence_end(sentence - 1) > end);
        }
        let boundaries = Boundaries {
            splits_inside: shard.sentence_end(first) >= end,
            ends_inside: sentence == first || shard.sentence_end(sentence - 1) != end,
        };
        found(start..end, boundaries);
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::source::tokens::{EncodedDocuments, ShardBuilder};

    /// A shard whose documents have sentences of these lengths.
    fn shard(documents: &[Vec<usize>]) -> TokenShard {
        let mut encoded = EncodedDocuments::default();
        for sentences in documents {
            for &tokens in sentences {
                encoded.ids.extend(std::iter::repeat_n(7, tokens));
                encoded.sentence_ends.push(encoded.ids.len() as u32);
            }
            encoded.document_ends.push(encoded.sentence_ends.len() as u32);
        }
        let mut builder = ShardBuilder::new(100);
        builder.append(&encoded);
        builder.into_shard().unwrap()
    }

    fn cut(document: &[usize], max: usize, short: f64, key: Key) -> Vec<Range<usize>> {
        cut_with_boundaries(document, max, short, key).into_iter().map(|(tokens, _)| tokens).collect()
    }

    fn cut_with_boundaries(document: &[usize], max: usize, short: f64, key: Key) -> Vec<(Range<usize>, Boundaries)> {
        let shard = shard(&[vec![3, 1], document.to_vec()]);
        let mut found = Vec::new();
        cut_document(&shard, 2..2 + document.len(), max, short, key, |tokens, boundaries| {
            found.push((tokens.start - 4..tokens.end - 4, boundaries))
        });
        found
    }

    #[test]
    fn sentences_that_fit_are_not_cut() {
        let key = Key::root(1);
        assert_eq!(cut(&[5, 5, 5, 5], 12, 0.0, key), [0..10, 10..20]);
        assert_eq!(cut(&[12, 12, 1], 12, 0.0, key), [0..12, 12..23, 23..25], "no single token is left over");
        assert_eq!(cut(&[30], 12, 0.0, key), [0..12, 12..24, 24..30], "a long sentence is cut");
        assert_eq!(cut(&[2, 30, 2], 12, 0.0, key), [0..2, 2..14, 14..26, 26..34]);
        assert_eq!(cut(&[1, 1], 12, 0.0, key), vec![0..2; 1]);
    }

    #[test]
    fn no_single_token_is_left_over_by_a_short_segment() {
        for seed in 0..300 {
            let key = Key::root(seed);
            assert_eq!(cut(&[2, 1], 13, 1.0, key), vec![0..3; 1]);
            let cuts = cut(&[2, 2, 1], 13, 1.0, key);
            assert!(cuts.iter().all(|segment| segment.len() >= 2) && cuts.last().unwrap().end == 5, "{cuts:?}");
        }
    }

    #[test]
    fn short_segments_have_the_configured_frequency() {
        let lengths = |short| {
            let cuts = cut(&[2; 40_000], 100, short, Key::root(5));
            cuts.into_iter().map(|segment| segment.len()).collect::<Vec<usize>>()
        };
        assert!(lengths(0.0).iter().all(|&length| length == 100));
        let cut_short = lengths(0.1);
        let short = cut_short.iter().filter(|&&length| length < 99).count() as f64 / cut_short.len() as f64;
        // About 840 segments; targets of 98 and more count as full: 5 standard deviations around
        // 0.097.
        assert!((short - 0.097).abs() < 0.052, "{short}");
    }

    #[test]
    fn each_length_is_in_the_range_of_its_class() {
        for config in [
            PretrainConfig::default(),
            PretrainConfig { max_seq_length: 100, next_sentence: false, ..PretrainConfig::default() },
        ] {
            for length in 1..=config.max_text_tokens() {
                for boundaries in Boundaries::ALL {
                    let class = class_of(length, boundaries, &config);
                    assert!(class < class_count(&config) && Boundaries::ALL[class % 4] == boundaries);
                    assert!(class_lengths(class, &config).contains(&length), "{length} in {class}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_token_is_in_one_segment_within_the_limit_and_boundaries_are_right(
            // Short targets, a small limit, and a sentence of two tokens before one of one token:
            // cases where a single token might remain.
            document in prop_oneof![Just(vec![2, 1]), prop::collection::vec(1usize..60, 1..30)],
            max in prop_oneof![13usize..16, 13usize..80], short in prop_oneof![Just(1.0), 0.0f64..1.0], seed: u64,
        ) {
            let ends: Vec<usize> =
                document.iter().scan(0, |end, tokens| { *end += tokens; Some(*end) }).collect();
            let total = ends[ends.len() - 1];
            let mut next = 0;
            for (segment, boundaries) in cut_with_boundaries(&document, max, short, Key::root(seed)) {
                prop_assert_eq!(boundaries.ends_inside, !ends.contains(&segment.end));
                prop_assert_eq!(boundaries.splits_inside, !ends.iter().any(|end| segment.start < *end && *end < segment.end));
                prop_assert_eq!(segment.start, next);
                prop_assert!(segment.len() <= max && (segment.len() >= 2 || total == 1), "{:?} of {}", segment, total);
                next = segment.end;
            }
            prop_assert_eq!(next, total);
        }
    }
}
