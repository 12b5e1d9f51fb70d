//! Compares scores with sacrebleu's on lines of all kinds, recorded by scripts/fixtures/bleu.py.

// Clippy's exception for tests does not cover other functions in this file.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use hetseq_metrics::{BleuSums, BleuTokenizer, Chrf, ChrfSums, Corpus, SACREBLEU, Smoothing};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, from_value, json};

#[derive(Deserialize)]
struct Recorded {
    version: String,
    /// A hypothesis, a reference, and an optional second reference.
    lines: Vec<(String, String, Option<String>)>,
    shown: Vec<String>,
    /// The words of each shown line, separated by a space.
    tokens: BTreeMap<String, Vec<String>>,
    per_line: BTreeMap<String, Vec<[u64; 10]>>,
    chrf_per_line: Vec<[u64; 24]>,
    corpora: Vec<Case>,
    prefixes: Vec<Prefix>,
    singles: Vec<Single>,
    /// The number of consecutive code points of a class.
    classes: Vec<(u32, String)>,
}

#[derive(Deserialize)]
struct Case {
    references: String,
    lowercase: bool,
    metric: String,
    tokenize: Option<String>,
    smooth: Option<String>,
    score: f64,
    signature: String,
    printed: String,
    #[serde(default)]
    precisions: [f64; 4],
    #[serde(default)]
    bp: f64,
    #[serde(default)]
    ratio: f64,
}

#[derive(Deserialize)]
struct Prefix {
    length: usize,
    tokenize: String,
    sums: [u64; 10],
    scores: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct Single {
    line: usize,
    scores: Vec<f64>,
}

fn recorded() -> Recorded {
    let recorded: Recorded = serde_json::from_str(include_str!("fixtures/bleu.json")).unwrap();
    assert!(recorded.lines.len() >= 500);
    recorded
}

impl Recorded {
    fn hypotheses(&self) -> Vec<String> {
        self.lines.iter().map(|(hypothesis, _, _)| hypothesis.clone()).collect()
    }

    /// All references of the line.
    fn references(&self, line: usize) -> Vec<&str> {
        let (_, first, second) = &self.lines[line];
        [Some(first), second.as_ref()].into_iter().flatten().map(String::as_str).collect()
    }
}

/// Parses a value by its name in a config.
fn named<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    from_value(Value::from(name)).unwrap()
}

#[track_caller]
fn assert_close(found: f64, expected: f64, what: &dyn std::fmt::Debug) {
    assert!((found - expected).abs() <= 1e-9, "{found} instead of {expected}: {what:?}");
}

#[test]
fn tokenizers_agree() {
    let recorded = recorded();
    for (name, expected) in &recorded.tokens {
        let tokenizer: BleuTokenizer = named(name);
        assert_eq!(tokenizer.name(), name);
        for (line, expected) in recorded.shown.iter().zip(expected) {
            assert_eq!(tokenizer.words(line).join(" "), *expected, "{name}: {line:?}");
        }
    }
}

#[test]
fn character_classes_agree() {
    let words = |text: String| BleuTokenizer::Intl.words(&text).len();
    let (mut code, mut seen) = (0, 0);
    for (many, class) in recorded().classes {
        for c in (code..code + many).filter_map(char::from_u32).filter(|_| class != "?") {
            // Symbols separate everything, punctuation does not separate numbers, and punctuation
            // after a number stays with it.
            let space = c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c);
            let found = (words(format!("a{c}b")), words(format!("1{c}1")), words(format!("{c},")));
            let expected = match class.as_str() {
                _ if space => (2, 2, 1),
                "P" => (3, 1, 2),
                "S" => (3, 3, 2),
                "N" => (1, 1, 1),
                _ => (1, 1, 2),
            };
            assert_eq!(found, expected, "{:?} is {class}", u32::from(c));
            seen += 1;
        }
        code += many;
    }
    assert!(seen > 200_000, "{seen}");
}

#[test]
fn sums_of_every_line_agree() {
    let recorded = recorded();
    for (name, expected) in &recorded.per_line {
        for (line, expected) in expected.iter().enumerate() {
            let references = recorded.references(line);
            let sums = BleuSums::of(named(name), &recorded.lines[line].0, &references);
            assert_eq!(&sums.to_counts(), expected, "{name}, line {line}: {:?}", recorded.lines[line]);
            assert_eq!(BleuSums::from_counts(*expected), sums);
        }
    }
    for (line, expected) in recorded.chrf_per_line.iter().enumerate() {
        let sums = ChrfSums::of(Chrf::PlusPlus, &recorded.lines[line].0, &recorded.references(line));
        assert_eq!(&sums.to_counts(), expected, "line {line}: {:?}", recorded.lines[line]);
        assert_eq!(ChrfSums::from_counts(*expected), sums);
    }
}

#[test]
fn corpus_scores_agree() {
    let recorded = recorded();
    assert_eq!(recorded.version, SACREBLEU);
    let first: Vec<String> = recorded.lines.iter().map(|(_, first, _)| first.clone()).collect();
    let second: Vec<String> = recorded.lines.iter().map(|line| line.2.clone().unwrap_or_default()).collect();
    let mut checked = 0;
    for case in &recorded.corpora {
        let what = (&case.metric, &case.references, case.lowercase, &case.tokenize, &case.smooth);
        let references = match case.references.as_str() {
            "one" => vec![first.clone()],
            "two" => vec![first.clone(), second.clone()],
            // Lines with one reference among lines with two: a corpus in files cannot have them.
            _ => continue,
        };
        let mut corpus = Corpus::new(recorded.hypotheses(), references).unwrap();
        if case.lowercase {
            corpus.lowercase();
        }
        checked += 1;
        if case.metric != "bleu" {
            let kind: Chrf = named(&case.metric);
            let score = corpus.chrf(kind).score();
            assert_close(score, case.score, &what);
            assert_eq!(corpus.chrf_signature(kind), case.signature);
            assert_eq!(format!("{} = {score:.2}", kind.name()), case.printed);
            continue;
        }
        let tokenizer: BleuTokenizer = named(case.tokenize.as_ref().unwrap());
        let smoothing: Smoothing = named(case.smooth.as_ref().unwrap());
        let bleu = corpus.bleu(tokenizer).bleu(smoothing);
        assert_close(bleu.score, case.score, &what);
        assert_close(bleu.brevity_penalty, case.bp, &what);
        assert_close(bleu.ratio, case.ratio, &what);
        bleu.precisions.iter().zip(case.precisions).for_each(|(found, expected)| assert_close(*found, expected, &what));
        assert_eq!(corpus.bleu_signature(tokenizer, smoothing), case.signature);
        assert_eq!(bleu.to_string(), case.printed);
    }
    assert_eq!(checked, 2 * 2 * (3 * 4 + 2));
}

#[test]
fn lines_with_one_and_with_two_references_can_be_mixed() {
    let recorded = recorded();
    let cases = recorded.corpora.iter().filter(|case| case.references == "some two" && !case.lowercase);
    let mut checked = 0;
    for case in cases {
        checked += 1;
        let lines = 0..recorded.lines.len();
        if case.metric == "bleu" {
            let mut sums = BleuSums::default();
            let tokenizer = named(case.tokenize.as_ref().unwrap());
            lines.for_each(|line| {
                sums.add(&BleuSums::of(tokenizer, &recorded.lines[line].0, &recorded.references(line)));
            });
            assert_close(sums.bleu(named(case.smooth.as_ref().unwrap())).score, case.score, &case.smooth);
        } else {
            let mut sums = ChrfSums::default();
            let kind = named(&case.metric);
            lines.for_each(|line| {
                sums.add(&ChrfSums::of(kind, &recorded.lines[line].0, &recorded.references(line)));
            });
            assert_close(sums.score(), case.score, &case.metric);
        }
    }
    assert_eq!(checked, 3 * 4 + 2);
}

#[test]
fn scores_of_prefixes_and_single_lines_agree() {
    let recorded = recorded();
    for prefix in &recorded.prefixes {
        let mut sums = BleuSums::default();
        for line in 0..prefix.length {
            sums.add(&BleuSums::of(named(&prefix.tokenize), &recorded.lines[line].0, &recorded.references(line)));
        }
        assert_eq!(sums.to_counts(), prefix.sums);
        for (smoothing, expected) in &prefix.scores {
            assert_close(sums.bleu(named(smoothing)).score, *expected, &(prefix.length, smoothing));
        }
    }
    let smoothings = [Smoothing::Exp, Smoothing::None, Smoothing::Floor, Smoothing::AddK];
    for single in &recorded.singles {
        let (hypothesis, reference, _) = &recorded.lines[single.line];
        let sums = BleuSums::of(BleuTokenizer::V13a, hypothesis, &[reference]);
        let bleu = smoothings.map(|smoothing| sums.bleu(smoothing).score);
        let chrf = [Chrf::Plain, Chrf::PlusPlus].map(|kind| ChrfSums::of(kind, hypothesis, &[reference]).score());
        let found: Vec<f64> = bleu.into_iter().chain(chrf).collect();
        assert_eq!(found.len(), single.scores.len());
        found.iter().zip(&single.scores).for_each(|(found, score)| assert_close(*found, *score, &single.line));
    }
    let is_smoothed = |single: &Single| single.scores[0] > 0.0 && single.scores[1] == 0.0;
    assert!(recorded.singles.iter().filter(|single| is_smoothed(single)).count() >= 3, "too few lines test smoothing");
}

#[test]
fn without_references_nothing_matches() {
    let sums = BleuSums::of(BleuTokenizer::V13a, "a b", &[]);
    assert_eq!((sums.matches, sums.totals, sums.hypothesis, sums.reference), ([0; 4], [2, 1, 0, 0], 2, 0));
    for smoothing in ["exp", "floor", "add-k", "none"] {
        assert_eq!(sums.bleu(named(smoothing)).score, 0.0);
        assert_eq!(BleuSums::default().bleu(named(smoothing)).score, 0.0);
    }
    assert_eq!(ChrfSums::of(Chrf::Plain, "a", &[]), ChrfSums::default());
    assert_eq!(ChrfSums::default().score(), 0.0);
    let unequal = Corpus::new(vec![String::new()], vec![vec![String::new()], Vec::new()]).err().unwrap();
    assert_eq!((unequal.set, unequal.lines, unequal.hypotheses), (1, 0, 1));
}

#[test]
fn impossible_counts_do_no_harm() {
    let mut sums = BleuSums::from_counts([u64::MAX; 10]);
    sums.add(&sums.clone());
    assert_eq!(sums.to_counts(), [u64::MAX; 10]);
    assert!(sums.bleu(Smoothing::Exp).score.is_finite());
    let mut sums = ChrfSums::from_counts([u64::MAX; 24]);
    sums.add(&sums.clone());
    assert!(sums.score().is_finite());
    assert_eq!(serde_json::to_value([Smoothing::AddK]).unwrap(), json!(["add-k"]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any distribution of lines over ranks, the added sums are those of the corpus.
    #[test]
    fn sums_of_parts_are_the_sums_of_the_whole(
        lines in prop::collection::vec(("[abAB1., ]{0,20}", "[abAB1., ]{0,20}", 0usize..4), 0..40),
    ) {
        let hypotheses = lines.iter().map(|(hypothesis, _, _)| hypothesis.clone()).collect();
        let references = lines.iter().map(|(_, reference, _)| reference.clone()).collect();
        let corpus = Corpus::new(hypotheses, vec![references]).unwrap();
        let (mut bleu, mut chrf) = (vec![BleuSums::default(); 4], vec![ChrfSums::default(); 4]);
        for (hypothesis, reference, rank) in &lines {
            bleu[*rank].add(&BleuSums::of(BleuTokenizer::V13a, hypothesis, &[reference]));
            chrf[*rank].add(&ChrfSums::of(Chrf::PlusPlus, hypothesis, &[reference]));
        }
        let (mut all_bleu, mut all_chrf) = (BleuSums::default(), ChrfSums::default());
        bleu.iter().for_each(|sums| all_bleu.add(&BleuSums::from_counts(sums.to_counts())));
        chrf.iter().for_each(|sums| all_chrf.add(&ChrfSums::from_counts(sums.to_counts())));
        prop_assert_eq!(&all_bleu, &corpus.bleu(BleuTokenizer::V13a));
        prop_assert_eq!(&all_chrf, &corpus.chrf(Chrf::PlusPlus));
        let (score, chrf) = (all_bleu.bleu(Smoothing::Exp).score, all_chrf.score());
        prop_assert!((0.0..=100.0 + 1e-9).contains(&score) && (0.0..=100.0 + 1e-9).contains(&chrf));
    }

    /// Any text matches itself completely.
    #[test]
    fn a_line_matches_itself(line in "\\PC{0,40}|.{0,40}") {
        for tokenizer in [BleuTokenizer::V13a, BleuTokenizer::Intl, BleuTokenizer::None] {
            let sums = BleuSums::of(tokenizer, &line, &["", &line]);
            prop_assert_eq!(sums.matches, sums.totals);
            prop_assert_eq!(sums.hypothesis, sums.totals[0]);
        }
        let sums = ChrfSums::of(Chrf::PlusPlus, &line, &[&line]);
        prop_assert_eq!(sums.matches, sums.reference);
    }
}
