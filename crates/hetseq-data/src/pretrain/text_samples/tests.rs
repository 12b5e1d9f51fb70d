//! Properties of an epoch of samples. In these corpora every token has a unique id, so that its
//! origin is known.

use std::collections::HashSet;

use super::*;
use crate::mask::Masking;
use crate::source::tokens::{EncodedDocuments, ShardBuilder};
use crate::tokenize::SpecialTokens;

/// The id of the first text token; the ids below are special.
const FIRST: u32 = 5;

struct Corpus {
    samples: TextSamples,
    /// The sentence and the document of each token.
    origins: Vec<(usize, usize)>,
}

/// Documents of up to `max_sentences` sentences of up to 60 tokens.
fn corpus(documents: usize, max_sentences: u64, config: &PretrainConfig) -> Corpus {
    let key = Key::root(77);
    let (mut encoded, mut origins) = (EncodedDocuments::default(), Vec::new());
    for document in 0..documents {
        let key = key.index(document as u64);
        for sentence in 0..1 + key.below(0, max_sentences) {
            // A sum of two random numbers: most sentences have a medium length, some a single
            // token. A document has at least two tokens.
            let min = if sentence == 0 { 2 } else { 1 };
            let tokens = min + key.below(2 * sentence + 1, 30) + key.below(2 * sentence + 2, 30);
            for _ in 0..tokens {
                encoded.ids.push(FIRST + origins.len() as u32);
                origins.push((encoded.sentence_ends.len(), document));
            }
            encoded.sentence_ends.push(encoded.ids.len() as u32);
        }
        encoded.document_ends.push(encoded.sentence_ends.len() as u32);
    }
    let size = FIRST as usize + origins.len();
    let special = SpecialTokens { pad: 0, unk: 1, cls: 2, sep: 3, mask: 4 };
    let mut builder = ShardBuilder::new(size);
    builder.append(&encoded);
    let vocabulary = Vocabulary::new(size, special, [], []);
    let corpus = TextCorpus::from_shard(builder.into_shard().unwrap(), vocabulary);
    Corpus { samples: TextSamples::new(corpus, config).unwrap(), origins }
}

fn epoch_key(epoch: u64) -> impl Fn(u32) -> Key {
    move |id| Key::root(1).name("sample").index(epoch).index(u64::from(id))
}

impl Corpus {
    /// All samples of an epoch, with the original ids of masked tokens.
    fn epoch(&self, epoch: u64) -> Vec<Row> {
        let key = epoch_key(epoch);
        let unmasked = |id| {
            let mut row = self.samples.row(id, &key).unwrap();
            for (&position, &id) in row.masked_positions.iter().zip(&row.masked_ids) {
                row.ids[position as usize] = id;
            }
            row
        };
        (0..self.samples.len() as u32).map(unmasked).collect()
    }

    fn origin(&self, id: u32) -> (usize, usize) {
        self.origins[(id - FIRST) as usize]
    }
}

/// The text of a row: first and second segment, without special tokens.
fn halves(row: &Row) -> (&[u32], &[u32]) {
    let first = &row.ids[1..row.first_segment - 1];
    (first, row.ids.get(row.first_segment..row.ids.len() - 1).unwrap_or_default())
}

#[test]
fn no_token_is_used_twice_in_an_epoch_and_few_are_lost() {
    let corpus = corpus(400, 30, &PretrainConfig::default());
    let sentences = corpus.origins.last().unwrap().0 + 1;
    let mut ever = HashSet::new();
    for epoch in 0..3 {
        let mut seen = HashSet::new();
        for row in corpus.epoch(epoch) {
            let (first, second) = halves(&row);
            for &id in first.iter().chain(second) {
                assert!(seen.insert(id), "token {id} is used twice");
            }
        }
        let used: HashSet<usize> = seen.iter().map(|&id| corpus.origin(id).0).collect();
        assert!(sentences - used.len() < sentences / 200, "{} of {sentences} sentences", used.len());
        let lost = 1.0 - seen.len() as f64 / corpus.origins.len() as f64;
        assert!(lost < 0.01, "{:.2} % of the tokens were truncated", 100.0 * lost);
        ever.extend(seen);
    }
    let never = corpus.origins.len() - ever.len();
    assert!(never < corpus.origins.len() / 1000, "{never} tokens were truncated in every epoch");
}

#[test]
fn without_pairs_every_token_is_used_once() {
    let config = PretrainConfig { next_sentence: false, ..PretrainConfig::default() };
    let corpus = corpus(200, 30, &config);
    let rows = corpus.epoch(0);
    let mut ids: Vec<u32> = rows.iter().flat_map(|row| &row.ids[1..row.ids.len() - 1]).copied().collect();
    ids.sort_unstable();
    assert!(ids.iter().copied().eq(FIRST..FIRST + corpus.origins.len() as u32));
    for row in rows {
        assert_eq!((row.ids[0], *row.ids.last().unwrap()), (2, 3));
        assert_eq!(row.first_segment, row.ids.len());
        assert!(row.ids.len() <= 128 && !row.is_random_next);
    }
    let batch = corpus.samples.collate(&[0, 1], &epoch_key(0)).unwrap();
    assert_eq!(batch.next_sentence, None);
    assert!(batch.segment_ids.iter().all(|&segment| segment == 0));
}

#[test]
fn labels_are_correct_and_balanced() {
    let corpus = corpus(2000, 30, &PretrainConfig::default());
    let mut random = 0;
    let rows = corpus.epoch(0);
    for row in &rows {
        let (first, second) = halves(row);
        let (last, next) = (*first.last().unwrap(), second[0]);
        assert_eq!((row.ids[0], row.ids[row.first_segment - 1], *row.ids.last().unwrap()), (2, 3, 3));
        if row.is_random_next {
            random += 1;
            assert_ne!(corpus.origin(last).1, corpus.origin(next).1, "from another document");
        } else {
            assert_eq!(next, last + 1, "the second segment follows the first");
        }
    }
    // A pair tosses one coin for two samples: 5 standard deviations of n / 2 coins. Few partners
    // are from the same document.
    let (n, share) = (rows.len() as f64, f64::from(random) / rows.len() as f64);
    assert!(n > 5000.0 && (share - 0.5).abs() < 5.0 * (0.25 / (n / 2.0)).sqrt(), "{share} of {n}");
}

#[test]
fn labels_are_balanced_with_few_documents_too() {
    let corpus = corpus(3, 400, &PretrainConfig::default());
    let random: usize = (0..20).map(|epoch| corpus.epoch(epoch).iter().filter(|row| row.is_random_next).count()).sum();
    let n = 20.0 * corpus.samples.len() as f64;
    // Partners from one document toss no coin, and the number of such partners is random too: the
    // bound is a little wider than for coins alone.
    assert!((random as f64 / n - 0.5).abs() < 6.0 * (0.25 / (n / 2.0)).sqrt(), "{} of {n}", random as f64 / n);
}

/// The properties of a sample that do not depend on its meaning: lengths, and whether its halves
/// start and end with a sentence.
#[derive(Debug, Clone, Copy)]
struct SampleShape {
    first: usize,
    second: usize,
    /// The start and the end of the first segment, then of the second.
    boundaries: [bool; 4],
}

impl Corpus {
    fn shape(&self, row: &Row) -> SampleShape {
        let begins = |id: u32| id == FIRST || self.origin(id - 1).0 != self.origin(id).0;
        let ends = |id: u32| self.origins.get((id + 1 - FIRST) as usize).is_none_or(|next| next.0 != self.origin(id).0);
        let (first, second) = halves(row);
        let is_contiguous = |half: &[u32]| half.windows(2).all(|two| two[0] + 1 == two[1]);
        assert!(is_contiguous(first) && is_contiguous(second), "no token is missing inside a segment");
        let [[a, b], [c, d]] = [first, second].map(|half| [begins(half[0]), ends(half[half.len() - 1])]);
        SampleShape { first: first.len(), second: second.len(), boundaries: [a, b, c, d] }
    }
}

/// The largest distance between two empirical distribution functions (Kolmogorov-Smirnov
/// statistic).
fn distance(one: &mut [usize], other: &mut [usize]) -> f64 {
    one.sort_unstable();
    other.sort_unstable();
    let below = |all: &[usize], x: usize| all.partition_point(|&y| y <= x) as f64 / all.len() as f64;
    let values = one.iter().chain(&*other);
    values.map(|&x| (below(one, x) - below(other, x)).abs()).fold(0.0, f64::max)
}

#[test]
fn the_shape_of_a_sample_does_not_reveal_its_label() {
    let cut = |max_seq_length, short_seq_prob| PretrainConfig { max_seq_length, short_seq_prob, ..Default::default() };
    for (name, documents, max_sentences, config) in [
        ("articles", 3000, 30, cut(128, 0.1)),
        ("few documents", 12, 4000, cut(128, 0.1)),
        ("short documents", 10_000, 4, cut(128, 0.1)),
        ("one or two sentences a sample", 1500, 30, cut(64, 0.1)),
        ("sentences that do not fit", 1000, 30, cut(32, 0.1)),
        ("samples of all lengths", 1500, 30, cut(128, 1.0)),
    ] {
        let corpus = corpus(documents, max_sentences, &config);
        let mut shapes = [Vec::new(), Vec::new()];
        for epoch in 0..2 {
            corpus.epoch(epoch).iter().for_each(|row| shapes[usize::from(row.is_random_next)].push(corpus.shape(row)));
        }
        assert!(shapes.iter().all(|shapes| shapes.len() > 5000), "{name}");
        same_boundaries(name, &shapes);
        same_lengths(name, &shapes, |_| true);
        same_lengths(name, &shapes, |shape| shape.boundaries[3]);
        same_lengths(name, &shapes, |shape| !shape.boundaries[3]);
    }
}

/// Each combination of starts and ends is equally frequent with both labels.
fn same_boundaries(name: &str, shapes: &[Vec<SampleShape>; 2]) {
    for boundaries in 0..16 {
        let has = |shape: &&SampleShape| (0..4).all(|at| shape.boundaries[at] == (boundaries >> at & 1 == 1));
        let [next, random] =
            shapes.each_ref().map(|shapes| shapes.iter().filter(has).count() as f64 / shapes.len() as f64);
        let share = (next + random) / 2.0;
        let allowed = 4.0 * deviation(shapes[0].len(), shapes[1].len()) * (share * (1.0 - share)).sqrt();
        assert!(
            (next - random).abs() <= allowed,
            "{name}: {boundaries:04b} in {next} if it follows, in {random} if not"
        );
    }
}

/// The lengths have the same distribution with both labels, also among samples of a certain shape.
fn same_lengths(name: &str, shapes: &[Vec<SampleShape>; 2], with: fn(&SampleShape) -> bool) {
    type Length = fn(&SampleShape) -> usize;
    let lengths: [(&str, Length); 4] = [
        ("the first segment", |shape| shape.first),
        ("the second segment", |shape| shape.second),
        ("both", |shape| shape.first + shape.second),
        ("their difference", |shape| 1000 + shape.first - shape.second),
    ];
    for (what, length) in lengths {
        let [mut next, mut random] = shapes
            .each_ref()
            .map(|shapes| shapes.iter().filter(|shape| with(shape)).map(length).collect::<Vec<usize>>());
        // Equal distributions exceed this distance only once in ten thousand.
        let (found, allowed) = (distance(&mut next, &mut random), 2.2 * deviation(next.len(), random.len()));
        assert!(found < allowed, "{name}: the lengths of {what} are {found} apart, {allowed} is allowed");
    }
}

/// The standard deviation factor. The two samples of a pair are similar, which halves the effective
/// number of samples.
fn deviation(one: usize, other: usize) -> f64 {
    (2.0 / one as f64 + 2.0 / other as f64).sqrt()
}

#[test]
fn lengths_are_close_upper_bounds_in_every_epoch() {
    let corpus = corpus(500, 30, &PretrainConfig::default());
    let lengths = corpus.samples.lengths();
    assert_eq!(lengths.samples(), corpus.samples.len());
    let (mut real, mut bound) = (0, 0);
    for epoch in 0..3 {
        for (id, row) in corpus.epoch(epoch).iter().enumerate() {
            assert!(row.ids.len() as u32 <= lengths.tokens(id as u32), "sample {id}");
            real += row.ids.len() as u64;
            bound += u64::from(lengths.tokens(id as u32));
        }
    }
    assert!(lengths.tokens(corpus.samples.len() as u32 - 1) == 128 && lengths.tokens(0) == 16);
    assert!(real as f64 > 0.9 * bound as f64, "{real} tokens, bounded by {bound}");
}

#[test]
fn a_sample_does_not_depend_on_its_batch() {
    for next_sentence in [true, false] {
        let corpus = corpus(100, 30, &PretrainConfig { next_sentence, ..PretrainConfig::default() });
        let key = epoch_key(4);
        let mut ids: Vec<u32> = (0..corpus.samples.len() as u32).collect();
        Key::root(8).shuffle(&mut ids);
        for size in [1, 7, 64] {
            for group in ids.chunks(size) {
                let batch = corpus.samples.collate(group, &key).unwrap();
                let mut masked = batch.masked_positions.iter().zip(&batch.masked_ids).peekable();
                for (at, &id) in group.iter().enumerate() {
                    let row = corpus.samples.row(id, &key).unwrap();
                    let length = row.ids.len();
                    let cells = at * batch.seq..(at + 1) * batch.seq;
                    assert_eq!(batch.lengths[at] as usize, length);
                    let ids = &batch.input_ids[cells.clone()];
                    assert!(ids[..length].iter().zip(&row.ids).all(|(&a, &b)| a as u32 == b));
                    assert!(ids[length..].iter().all(|&id| id == 0), "the rest is padding");
                    let segments = &batch.segment_ids[cells.clone()];
                    assert_eq!(segments.iter().filter(|&&s| s == 1).count(), length - row.first_segment);
                    let mut own = Vec::new();
                    while let Some((&at, &id)) = masked.next_if(|(at, _)| cells.contains(&(**at as usize))) {
                        own.push((at as u32 - cells.start as u32, id as u32));
                    }
                    assert!(
                        own.iter().copied().eq(row
                            .masked_positions
                            .iter()
                            .copied()
                            .zip(row.masked_ids.iter().copied()))
                    );
                    if let Some(labels) = &batch.next_sentence {
                        assert_eq!(labels[at] == 1, row.is_random_next);
                    }
                }
                assert!(masked.next().is_none());
                assert!(batch.seq.is_multiple_of(8) && batch.seq <= 128);
                let longest = batch.lengths.iter().max().copied().unwrap() as usize;
                assert_eq!(batch.seq, longest.next_multiple_of(8), "padded to the longest only");
            }
        }
    }
}

#[test]
fn masks_and_pairs_change_between_epochs() {
    let corpus = corpus(300, 30, &PretrainConfig::default());
    let (now, next) = (epoch_key(0), epoch_key(1));
    let row = |id, key: &dyn Fn(u32) -> Key| corpus.samples.row(id, key).unwrap();
    let n = corpus.samples.len() as u32;
    assert!((0..n).all(|id| row(id, &now) == row(id, &now)));
    let masked_alike = (0..n).filter(|&id| row(id, &now).masked_positions == row(id, &next).masked_positions).count();
    assert!(masked_alike < n as usize / 20, "{masked_alike} of {n}");
    let (a, b) = (corpus.epoch(0), corpus.epoch(1));
    let paired_alike = a.iter().zip(&b).filter(|(a, b)| a.is_random_next && a.ids == b.ids).count();
    assert!(paired_alike < n as usize / 50, "{paired_alike} of {n}");
}

#[test]
fn a_seed_gives_the_recorded_samples() {
    // Recorded once. A change here changes every run on text.
    let corpus = corpus(
        50,
        30,
        &PretrainConfig { masking: Masking { whole_word: true, ..Masking::default() }, ..PretrainConfig::default() },
    );
    let all: Vec<u32> = (0..corpus.samples.len() as u32).collect();
    let batch = corpus.samples.collate(&all, &epoch_key(2)).unwrap();
    let text = format!("{batch:?} {}", corpus.samples.fingerprint());
    assert_eq!(&blake3::hash(text.as_bytes()).to_hex()[..16], "12184370f374ddba");
}

#[test]
fn tiny_corpora_have_samples_too() {
    for (documents, max_sentences) in [(1, 1), (2, 1), (1, 50), (3, 1)] {
        let corpus = corpus(documents, max_sentences, &PretrainConfig::default());
        let rows = corpus.epoch(0);
        assert!(!rows.is_empty());
        assert!(documents > 1 || rows.iter().all(|row| !row.is_random_next), "there is no other document");
    }
    let error = corpus(1, 1, &PretrainConfig::default()).samples.row(99, &epoch_key(0)).unwrap_err();
    assert!(error.to_string().contains("no sample 99"), "{error}");
}

#[test]
fn invalid_settings_are_refused() {
    for (config, part) in [
        (PretrainConfig { max_seq_length: 8, ..PretrainConfig::default() }, "max_seq_length"),
        (PretrainConfig { short_seq_prob: f64::NAN, ..PretrainConfig::default() }, "short_seq_prob"),
        (
            PretrainConfig { masking: Masking { probability: 0.0, ..Masking::default() }, ..PretrainConfig::default() },
            "masking",
        ),
        (PretrainConfig { pad_to_multiple: 0, ..PretrainConfig::default() }, "pad_to_multiple"),
    ] {
        assert!(config.check().unwrap_err().to_string().contains(part));
    }
}
