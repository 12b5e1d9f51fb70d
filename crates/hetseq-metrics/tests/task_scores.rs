//! Compares scores of tags, classes and numbers with those of seqeval, scikit-learn and SciPy,
//! recorded by scripts/fixtures/scores.py.

// Clippy's exception for tests does not cover other functions in this file.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use hetseq_metrics::{
    ClassSums, CorrelationSums, EntitySums, F1Score, GoldEntity, GoldMention, LinkSums, PredictedMention, ScoreError,
    TagScheme, entity_spans, entity_types, spearman,
};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, from_value};

#[derive(Deserialize)]
struct Recorded {
    /// Gold tags, predicted tags, and the spans of both, separated by spaces.
    sentences: Vec<(String, String, String, String)>,
    corpora: Vec<RecordedCorpus>,
    /// A scheme, tags, and the name of seqeval's error.
    invalid: Vec<(String, Vec<String>, String)>,
    classes: Vec<RecordedClasses>,
    correlations: Vec<RecordedPairs>,
    long_correlations: Vec<GeneratedPairs>,
}

/// Precision, recall, F1 and support.
type Row = [f64; 4];

#[derive(Deserialize)]
struct RecordedCorpus {
    scheme: String,
    first: usize,
    sentences: usize,
    types: BTreeMap<String, Row>,
    micro: Row,
    #[serde(rename = "macro")]
    macro_average: [Option<f64>; 4],
    weighted: Row,
}

#[derive(Deserialize)]
struct RecordedClasses {
    classes: usize,
    /// One digit per item.
    gold: String,
    predicted: String,
    accuracy: f64,
    matthews: f64,
    every: Vec<Row>,
    micro: [f64; 3],
    #[serde(rename = "macro")]
    macro_average: [f64; 3],
    weighted: [f64; 3],
    /// With class 0 as the positive one, and with class 1.
    binary: Option<[[f64; 3]; 2]>,
}

/// `None` is NaN.
#[derive(Deserialize)]
struct Statistics {
    pearson: Option<f64>,
    spearman: Option<f64>,
    mse: f64,
}

#[derive(Deserialize)]
struct RecordedPairs {
    gold: Vec<f64>,
    predicted: Vec<f64>,
    #[serde(flatten)]
    expected: Statistics,
}

#[derive(Deserialize)]
struct GeneratedPairs {
    seed: u32,
    pairs: usize,
    bits: i32,
    #[serde(flatten)]
    expected: Statistics,
}

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("fixtures/scores.json")).unwrap()
}

fn scheme(name: &str) -> TagScheme {
    from_value(Value::from(name.to_lowercase())).unwrap()
}

fn tags(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[track_caller]
fn assert_close(found: f64, expected: Option<f64>, tolerance: f64, what: &dyn std::fmt::Debug) {
    match expected {
        Some(expected) => {
            // A correlation of exactly 0 is the difference of larger numbers.
            let is_close = (found - expected).abs() <= tolerance * expected.abs() + 1e-15;
            assert!(is_close, "{found} instead of {expected}: {what:?}");
        }
        None => assert!(found.is_nan(), "{found} instead of NaN: {what:?}"),
    }
}

#[track_caller]
fn assert_score(found: F1Score, expected: &[f64], what: &dyn std::fmt::Debug) {
    let values = [found.precision, found.recall, found.f1, found.support as f64];
    for (value, &expected) in values.into_iter().zip(expected) {
        assert_close(value, Some(expected), 1e-15, what);
    }
}

#[test]
fn entities_agree_with_seqeval() {
    let recorded = recorded();
    let mut compared = 0;
    for corpus in &recorded.corpora {
        let scheme = scheme(&corpus.scheme);
        let mut sums = EntitySums::default();
        for sentence in &recorded.sentences[corpus.first..corpus.first + corpus.sentences] {
            let (gold, predicted, ..) = sentence;
            sums.add(&EntitySums::of(scheme, &tags(gold), &tags(predicted)).unwrap());
        }
        let (report, what) = (sums.report(), (&corpus.scheme, corpus.first, corpus.sentences));
        assert!(report.types.keys().eq(corpus.types.keys()), "{what:?}");
        for (entity_type, expected) in &corpus.types {
            assert_score(report.types[entity_type], expected, &(what, entity_type));
        }
        assert_score(report.averages.micro_average, &corpus.micro, &what);
        assert_score(report.averages.weighted_average, &corpus.weighted, &what);
        // NaN in seqeval, if there are no entities.
        let expected = corpus.macro_average.map(Option::unwrap_or_default);
        assert_eq!(corpus.macro_average[0].is_none(), corpus.types.is_empty());
        assert_score(report.averages.macro_average, &expected, &what);
        compared += corpus.types.len() + 3;
    }
    assert!(compared >= 300, "{compared}");
}

#[test]
fn spans_of_every_sentence_agree_with_seqeval() {
    let recorded = recorded();
    let mut schemes: Vec<_> = recorded.corpora.iter().map(|corpus| (corpus.first, scheme(&corpus.scheme))).collect();
    schemes.sort_by_key(|(first, _)| *first);
    let mut seen = [0; 7];
    for (at, (gold, predicted, gold_spans, predicted_spans)) in recorded.sentences.iter().enumerate() {
        // The scheme of the corpus that begins at this sentence or before.
        let scheme = schemes[schemes.partition_point(|(first, _)| *first <= at) - 1].1;
        for (line, expected) in [(gold, gold_spans), (predicted, predicted_spans)] {
            let tags = tags(line);
            let spans = entity_spans(scheme, &tags).unwrap();
            let shown = spans.iter().map(|span| format!("{}:{}:{}", span.start, span.end, span.entity_type));
            assert_eq!(shown.collect::<Vec<_>>().join(" "), *expected, "{scheme}: {line}");
            seen[scheme as usize] += 1;
        }
    }
    assert!(seen.iter().all(|&lines| lines >= 50), "{seen:?}");
}

#[test]
fn tags_that_seqeval_rejects_are_errors() {
    for (name, tags, error) in &recorded().invalid {
        let found = entity_spans(scheme(name), tags).unwrap_err();
        let is_same = match error.as_str() {
            "IndexError" => matches!(found, ScoreError::EmptyTag { .. }),
            _ => matches!(found, ScoreError::InvalidPrefix { .. }),
        };
        assert!(is_same, "{found} for {error}: {name} {tags:?}");
    }
}

#[test]
fn classes_agree_with_scikit_learn() {
    let digits = |text: &str| text.bytes().map(|digit| usize::from(digit - b'0')).collect::<Vec<_>>();
    for (at, case) in recorded().classes.iter().enumerate() {
        let sums = ClassSums::of(case.classes, &digits(&case.gold), &digits(&case.predicted)).unwrap();
        assert_close(sums.accuracy(), Some(case.accuracy), 1e-15, &at);
        assert_close(sums.matthews(), Some(case.matthews), 1e-14, &at);
        assert_eq!(case.every.len(), case.classes);
        for (class, expected) in case.every.iter().enumerate() {
            assert_score(sums.score(class).unwrap(), expected, &(at, class));
        }
        for (class, expected) in case.binary.iter().flatten().enumerate() {
            assert_score(sums.score(class).unwrap(), expected, &(at, class));
        }
        let averages = sums.averages();
        assert_score(averages.micro_average, &case.micro, &at);
        assert_score(averages.macro_average, &case.macro_average, &at);
        assert_score(averages.weighted_average, &case.weighted, &at);
    }
}

#[test]
fn correlations_agree_with_scipy() {
    let recorded = recorded();
    for case in &recorded.correlations {
        compare_correlations(&case.gold, &case.predicted, &case.expected);
    }
    for case in &recorded.long_correlations {
        let (gold, predicted) = generate(case);
        compare_correlations(&gold, &predicted, &case.expected);
    }
}

#[track_caller]
fn compare_correlations(gold: &[f64], predicted: &[f64], expected: &Statistics) {
    let sums = CorrelationSums::of(gold, predicted).unwrap();
    assert_close(sums.pearson(), expected.pearson, 1e-12, &gold);
    assert_close(sums.mean_squared_error(), Some(expected.mse), 1e-12, &gold);
    assert_close(spearman(gold, predicted).unwrap(), expected.spearman, 1e-12, &gold);
    let mut merged = CorrelationSums::default();
    for part in 0..3 {
        let every_third = |values: &[f64]| values.iter().skip(part).step_by(3).copied().collect::<Vec<_>>();
        merged.add(&CorrelationSums::of(&every_third(gold), &every_third(predicted)).unwrap());
    }
    assert_close(merged.pearson(), expected.pearson, 1e-12, &gold);
    assert_close(merged.mean_squared_error(), Some(expected.mse), 1e-12, &gold);
}

/// The numbers of scripts/fixtures/stream.py.
fn generate(case: &GeneratedPairs) -> (Vec<f64>, Vec<f64>) {
    let (mut state, scale) = (case.seed, 2f64.powi(case.bits));
    let mut next = |at: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (f64::from(state >> 16) / 32768.0 - 1.0) / f64::from(1 << (at % 8))
    };
    let pair = |at: usize| {
        let gold = (next(2 * at) * scale).floor() / scale;
        (gold, gold + next(2 * at + 1) * 4.0)
    };
    (0..case.pairs).map(pair).unzip()
}

/// Any tag, with a type or without.
fn tag() -> impl Strategy<Value = &'static str> {
    prop::sample::select(
        &["O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B", "I", "B", "U-A", "L-B", "X", ".", "-", "O-A"][..],
    )
}

/// A span, its gold entity or `None` if only predicted, and its predicted entity.
type MentionPair = (std::ops::Range<usize>, Option<GoldEntity>, Option<u32>);

fn mention() -> impl Strategy<Value = MentionPair> {
    let entity = prop_oneof![
        (0u32..2).prop_map(GoldEntity::Linked),
        Just(GoldEntity::Unknown),
        Just(GoldEntity::OutOfDictionary)
    ];
    let span = (0usize..6, 1usize..3).prop_map(|(start, words)| start..start + words);
    (span, prop::option::of(entity), prop::option::of(0u32..2))
}

type LinkSample = (Vec<GoldMention>, Vec<PredictedMention>, Vec<u32>);

fn link_sample(mentions: &[MentionPair]) -> LinkSample {
    let gold =
        mentions.iter().filter_map(|(words, gold, _)| Some(GoldMention { words: words.clone(), entity: (*gold)? }));
    let gold: Vec<GoldMention> = gold.collect();
    let given = gold.iter().filter(|mention| matches!(mention.entity, GoldEntity::Linked(_))).map(|_| 1).collect();
    let predicted =
        mentions.iter().map(|(words, _, entity)| PredictedMention { words: words.clone(), entity: *entity });
    (gold, predicted.collect(), given)
}

proptest! {
    /// For any distribution of sentences over ranks and any order, the added sums are those of all.
    #[test]
    fn entities_of_parts_add_up_to_the_whole(
        sentences in prop::collection::vec((prop::collection::vec((tag(), tag()), 0..8), 0usize..4), 0..30),
        reverse: bool,
    ) {
        let (scheme, mut whole) = (TagScheme::Conlleval, EntitySums::default());
        let mut parts = vec![EntitySums::default(); 4];
        let mut labels = Vec::new();
        for (tags, rank) in &sentences {
            let (gold, predicted): (Vec<&str>, Vec<&str>) = tags.iter().copied().unzip();
            let sums = EntitySums::of(scheme, &gold, &predicted).unwrap();
            whole.add(&sums);
            parts[*rank].add(&sums);
            // What is precise for one side is complete for the other.
            let swapped = EntitySums::of(scheme, &predicted, &gold).unwrap().report().averages;
            let averages = sums.report().averages;
            prop_assert_eq!(swapped.micro_average.f1, averages.micro_average.f1);
            prop_assert_eq!(swapped.macro_average.precision, averages.macro_average.recall);
            labels.extend(gold.into_iter().chain(predicted));
        }
        if reverse {
            parts.reverse();
        }
        let types = entity_types(scheme, &labels).unwrap();
        let mut counts = vec![0; 3 * types.len()];
        for part in &parts {
            counts.iter_mut().zip(part.to_counts(&types).unwrap()).for_each(|(sum, count)| *sum += count);
        }
        let restored = EntitySums::from_counts(&types, &counts).unwrap();
        prop_assert_eq!(&restored, &whole);
        prop_assert_eq!(restored.report(), whole.report());
    }

    /// The same for links.
    #[test]
    fn links_of_parts_add_up_to_the_whole(
        samples in prop::collection::vec((prop::collection::vec(mention(), 0..6), 0usize..4), 0..20), reverse: bool,
    ) {
        let (mut whole, mut parts) = (LinkSums::default(), vec![LinkSums::default(); 4]);
        for (mentions, rank) in &samples {
            let (gold, predicted, given) = link_sample(mentions);
            let sums = LinkSums::of(&gold, &predicted, &given).unwrap();
            whole.add(&sums);
            parts[*rank].add(&sums);
        }
        if reverse {
            parts.reverse();
        }
        let mut counts = [0; LinkSums::COUNTS];
        for part in &parts {
            counts.iter_mut().zip(part.to_counts()).for_each(|(sum, count)| *sum += count);
        }
        prop_assert_eq!(LinkSums::from_counts(&counts), Ok(whole));
        let [true_mentions, predicted, gold, true_links, predicted_links, gold_links, correct, linkable] = counts;
        prop_assert!(true_mentions <= predicted.min(gold) && predicted_links <= predicted && gold_links <= gold);
        prop_assert!(true_links <= true_mentions.min(predicted_links).min(gold_links) && correct <= linkable);
    }

    /// Any tags match themselves completely.
    #[test]
    fn a_sentence_matches_itself(tags in prop::collection::vec(tag(), 0..12), at in 0usize..7) {
        if let Ok(sums) = EntitySums::of(TagScheme::ALL[at], &tags, &tags) {
            for counts in sums.types().values() {
                prop_assert_eq!([counts.true_positives; 2], [counts.predicted, counts.gold]);
            }
        }
    }
}
