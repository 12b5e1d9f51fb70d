//! What an epoch of samples must be. In these corpora every token has an id of its own, so that each can be told where it
//! came from.

use std::collections::HashSet;

use super::*;
use crate::mask::Masking;
use crate::source::tokens::{EncodedDocuments, ShardBuilder};
use crate::tokenize::SpecialTokens;

/// The id of the first token of text; those before are special.
const FIRST: u32 = 5;

struct Corpus {
    samples: TextSamples,
    /// Of each token: its sentence and its document.
    origins: Vec<(usize, usize)>,
}

/// Documents of up to `most_sentences` sentences of up to 60 tokens.
fn corpus(documents: usize, most_sentences: u64, config: &PretrainConfig) -> Corpus {
    let key = Key::root(77);
    let (mut encoded, mut origins) = (EncodedDocuments::default(), Vec::new());
    for document in 0..documents {
        let key = key.index(document as u64);
        for sentence in 0..1 + key.below(0, most_sentences) {
            // The sum of two: most sentences are of middling length, some have a single token. Documents have two at least.
            let least = if sentence == 0 { 2 } else { 1 };
            let tokens = least + key.below(2 * sentence + 1, 30) + key.below(2 * sentence + 2, 30);
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
    let corpus = TextCorpus::of_shard(builder.into_shard().unwrap(), vocabulary);
    Corpus { samples: TextSamples::new(corpus, config).unwrap(), origins }
}

fn epoch_key(epoch: u64) -> impl Fn(u32) -> Key {
    move |id| Key::root(1).name("sample").index(epoch).index(u64::from(id))
}

impl Corpus {
    /// All samples of an epoch, with what was masked put back.
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
fn nothing_is_used_twice_in_an_epoch_and_hardly_anything_is_left_out() {
    let corpus = corpus(400, 30, &PretrainConfig::default());
    let sentences = corpus.origins.last().unwrap().0 + 1;
    let mut ever = HashSet::new();
    for epoch in 0..3 {
        let mut seen = HashSet::new();
        for row in corpus.epoch(epoch) {
            let (first, second) = halves(&row);
            for &id in first.iter().chain(second) {
                assert!(seen.insert(id), "token {id} is there twice");
            }
        }
        let used: HashSet<usize> = seen.iter().map(|&id| corpus.origin(id).0).collect();
        assert!(sentences - used.len() < sentences / 200, "{} of {sentences} sentences", used.len());
        let lost = 1.0 - seen.len() as f64 / corpus.origins.len() as f64;
        assert!(lost < 0.01, "{:.2} % of the tokens were cut off", 100.0 * lost);
        ever.extend(seen);
    }
    let never = corpus.origins.len() - ever.len();
    assert!(never < corpus.origins.len() / 1000, "{never} tokens were cut off every time");
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
fn labels_are_right_and_fair() {
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
    // Pairs toss one coin for two samples: 5 deviations of n / 2 coins. Few partners are of the same document.
    let (n, share) = (rows.len() as f64, f64::from(random) / rows.len() as f64);
    assert!(n > 5000.0 && (share - 0.5).abs() < 5.0 * (0.25 / (n / 2.0)).sqrt(), "{share} of {n}");
}

#[test]
fn labels_are_fair_among_few_documents_too() {
    let corpus = corpus(3, 400, &PretrainConfig::default());
    let random: usize = (0..20).map(|epoch| corpus.epoch(epoch).iter().filter(|row| row.is_random_next).count()).sum();
    let n = 20.0 * corpus.samples.len() as f64;
    // Partners of one document toss no coin, and which are is drawn too: a little wider than coins alone.
    assert!((random as f64 / n - 0.5).abs() < 6.0 * (0.25 / (n / 2.0)).sqrt(), "{} of {n}", random as f64 / n);
}

/// What can be seen of a sample without reading it: lengths, and whether its halves begin and end with a sentence.
#[derive(Debug, Clone, Copy)]
struct Look {
    first: usize,
    second: usize,
    /// The beginning and the end of the first segment, then of the second.
    seams: [bool; 4],
}

impl Corpus {
    fn look(&self, row: &Row) -> Look {
        let begins = |id: u32| id == FIRST || self.origin(id - 1).0 != self.origin(id).0;
        let ends = |id: u32| self.origins.get((id + 1 - FIRST) as usize).is_none_or(|next| next.0 != self.origin(id).0);
        let (first, second) = halves(row);
        let is_contiguous = |half: &[u32]| half.windows(2).all(|two| two[0] + 1 == two[1]);
        assert!(is_contiguous(first) && is_contiguous(second), "nothing is missing within a segment");
        let seams = [first, second].map(|half| [begins(half[0]), ends(half[half.len() - 1])]);
        Look { first: first.len(), second: second.len(), seams: [seams[0][0], seams[0][1], seams[1][0], seams[1][1]] }
    }
}

/// How far apart the distribution functions of two samples are at most (Kolmogorov and Smirnov).
fn distance(one: &mut [usize], other: &mut [usize]) -> f64 {
    one.sort_unstable();
    other.sort_unstable();
    let below = |all: &[usize], x: usize| all.partition_point(|&y| y <= x) as f64 / all.len() as f64;
    let values = one.iter().chain(&*other);
    values.map(|&x| (below(one, x) - below(other, x)).abs()).fold(0.0, f64::max)
}

#[test]
fn the_looks_of_a_sample_say_nothing_about_its_label() {
    let cut = |max_seq_length, short_seq_prob| PretrainConfig { max_seq_length, short_seq_prob, ..Default::default() };
    for (name, documents, most_sentences, config) in [
        ("articles", 3000, 30, cut(128, 0.1)),
        ("few documents", 12, 4000, cut(128, 0.1)),
        ("short documents", 10_000, 4, cut(128, 0.1)),
        ("one or two sentences a sample", 1500, 30, cut(64, 0.1)),
        ("sentences that do not fit", 1000, 30, cut(32, 0.1)),
        ("samples of all lengths", 1500, 30, cut(128, 1.0)),
    ] {
        let corpus = corpus(documents, most_sentences, &config);
        let mut looks = [Vec::new(), Vec::new()];
        for epoch in 0..2 {
            corpus.epoch(epoch).iter().for_each(|row| looks[usize::from(row.is_random_next)].push(corpus.look(row)));
        }
        assert!(looks.iter().all(|looks| looks.len() > 5000), "{name}");
        same_seams(name, &looks);
        same_lengths(name, &looks, |_| true);
        same_lengths(name, &looks, |look| look.seams[3]);
        same_lengths(name, &looks, |look| !look.seams[3]);
    }
}

/// Each combination of beginnings and ends is as frequent with either label.
fn same_seams(name: &str, looks: &[Vec<Look>; 2]) {
    for seams in 0..16 {
        let has = |look: &&Look| (0..4).all(|at| look.seams[at] == (seams >> at & 1 == 1));
        let [next, random] = looks.each_ref().map(|looks| looks.iter().filter(has).count() as f64 / looks.len() as f64);
        let share = (next + random) / 2.0;
        let allowed = 4.0 * deviation(looks[0].len(), looks[1].len()) * (share * (1.0 - share)).sqrt();
        assert!((next - random).abs() <= allowed, "{name}: {seams:04b} in {next} if it follows, in {random} if not");
    }
}

/// The lengths of either label have the same distribution, also among those with a certain look.
fn same_lengths(name: &str, looks: &[Vec<Look>; 2], with: fn(&Look) -> bool) {
    type Length = fn(&Look) -> usize;
    let lengths: [(&str, Length); 4] = [
        ("the first segment", |look| look.first),
        ("the second segment", |look| look.second),
        ("both", |look| look.first + look.second),
        ("their difference", |look| 1000 + look.first - look.second),
    ];
    for (what, length) in lengths {
        let [mut next, mut random] =
            looks.each_ref().map(|looks| looks.iter().filter(|look| with(look)).map(length).collect::<Vec<usize>>());
        // Two distributions that are the same are farther apart only once in ten thousand.
        let (found, allowed) = (distance(&mut next, &mut random), 2.2 * deviation(next.len(), random.len()));
        assert!(found < allowed, "{name}: the lengths of {what} are {found} apart, {allowed} is allowed");
    }
}

/// The two samples of a pair resemble each other: as if there were half as many.
fn deviation(one: usize, other: usize) -> f64 {
    (2.0 / one as f64 + 2.0 / other as f64).sqrt()
}

#[test]
fn costs_bound_every_epoch_and_are_near() {
    let corpus = corpus(500, 30, &PretrainConfig::default());
    let costs = corpus.samples.costs();
    assert_eq!(costs.samples(), corpus.samples.len());
    let (mut real, mut bound) = (0, 0);
    for epoch in 0..3 {
        for (id, row) in corpus.epoch(epoch).iter().enumerate() {
            assert!(row.ids.len() as u32 <= costs.tokens(id as u32), "sample {id}");
            real += row.ids.len() as u64;
            bound += u64::from(costs.tokens(id as u32));
        }
    }
    assert!(costs.tokens(corpus.samples.len() as u32 - 1) == 128 && costs.tokens(0) == 16);
    assert!(real as f64 > 0.9 * bound as f64, "{real} tokens, bounded by {bound}");
}

#[test]
fn a_sample_is_the_same_in_whatever_company() {
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
                    while let Some((&place, &id)) = masked.next_if(|(place, _)| cells.contains(&(**place as usize))) {
                        own.push((place as u32 - cells.start as u32, id as u32));
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
                assert_eq!(batch.seq, longest.next_multiple_of(8), "no wider than the longest needs");
            }
        }
    }
}

#[test]
fn another_epoch_masks_and_pairs_otherwise() {
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
fn the_same_seed_gives_the_same_samples_for_ever() {
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
fn odd_corpora_have_samples_too() {
    for (documents, most_sentences) in [(1, 1), (2, 1), (1, 50), (3, 1)] {
        let corpus = corpus(documents, most_sentences, &PretrainConfig::default());
        let rows = corpus.epoch(0);
        assert!(!rows.is_empty());
        assert!(documents > 1 || rows.iter().all(|row| !row.is_random_next), "there is no other document");
    }
    let error = corpus(1, 1, &PretrainConfig::default()).samples.row(99, &epoch_key(0)).unwrap_err();
    assert!(error.to_string().contains("no sample 99"), "{error}");
}

#[test]
fn settings_that_make_no_sense_are_refused() {
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
