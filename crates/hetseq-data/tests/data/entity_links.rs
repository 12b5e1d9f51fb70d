//! Tests of samples for entity linking: mentions, their entities and batches.

use std::ops::Range;
use std::sync::Arc;

use hetseq_data::finetune::{
    ConllColumns, ConllFile, ConllLabels, EntitySamples, EntityTable, LabelSet, LabelledSamples, LongSentences,
    TokenSampleConfig, TokenSamples,
};
use hetseq_metrics::{GoldEntity, GoldMention, LinkSums, PredictedMention, TagScheme, entity_spans};
use proptest::prelude::*;

use crate::token_labels::{config, tokenizer};

const NONE: GoldEntity = GoldEntity::Unknown;
const MISSING: GoldEntity = GoldEntity::OutOfDictionary;

fn read(text: &str, labels: ConllLabels) -> ConllFile {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.conll");
    std::fs::write(&path, text).unwrap();
    ConllFile::read(&path, &ConllColumns { token_column: 0, label_column: 1, entity_column: Some(2) }, labels).unwrap()
}

/// The words of sentences, which are separated by `|`, as `label/entity`.
fn file(words: &str) -> ConllFile {
    let line = |word: &str| match word.split_once('/') {
        Some((label, entity)) => format!("ab\t{label}\t{entity}\n"),
        None => "\n".to_owned(),
    };
    read(&words.split_whitespace().map(line).collect::<String>(), ConllLabels::Required)
}

/// The entities `X`, `Y` and `Z`.
fn table() -> Arc<EntityTable> {
    table_of("X 2 0\nY 0 3\nZ 3 4\n")
}

fn table_of(text: &str) -> Arc<EntityTable> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("e.vec");
    std::fs::write(&path, text).unwrap();
    Arc::new(EntityTable::read(&path, None).unwrap())
}

fn samples(file: &ConllFile, config: &TokenSampleConfig) -> Result<EntitySamples, String> {
    let labels = LabelSet::found(file.label_names());
    let samples = EntitySamples::new(file, Some(&labels), &table(), &tokenizer(), config);
    samples.map_err(|error| error.to_string().rsplit('/').next().unwrap().to_owned())
}

/// The mentions of all samples.
fn mentions(samples: &EntitySamples) -> Vec<Vec<(Range<usize>, GoldEntity)>> {
    let of_sample = |sample| samples.mentions(sample).iter().map(|it| (it.words.clone(), it.entity)).collect();
    (0..samples.tokens().len() as u32).map(of_sample).collect()
}

#[test]
fn a_mention_has_the_entity_of_its_first_word() {
    use GoldEntity::Linked;
    let file = file("B-p/X I-p/X O/O B-p/Y I-p/- B-p/Z | B/X I/_ B/X O/-- | I-p/X I-q/Y O/");
    let samples = samples(&file, &config(32)).unwrap();
    assert_eq!(
        mentions(&samples),
        [
            vec![(0..2, Linked(0)), (3..5, Linked(1)), (5..6, Linked(2))],
            vec![(0..2, Linked(0)), (2..3, Linked(0))],
            vec![(0..1, Linked(0)), (1..2, Linked(1))],
        ]
    );
    let counts = samples.counts();
    assert_eq!((counts.mentions, counts.linked, counts.unknown, counts.out_of_dictionary), (7, 7, 0, 0));
    // `--` is an entity on a word outside mentions.
    assert_eq!((counts.ignored_entities, counts.lost), (1, 0));
    assert_eq!(samples.mentions(7), []);
}

#[test]
fn unknown_and_missing_entities_are_not_linked() {
    let file = file("B/- B/_ B/O B/NIL B/--NME-- B/ | B/Q B/P I/P B/Q B/x B/y B/z B/w | B/- I/X O/Y");
    let samples = samples(&file, &config(32)).unwrap();
    let found = mentions(&samples);
    assert_eq!(found[0], (0..6).map(|word| (word..word + 1, NONE)).collect::<Vec<_>>());
    assert!(found[1].iter().all(|(_, entity)| *entity == MISSING) && found[1].len() == 7);
    assert_eq!(found[2], [(0..2, NONE)]);
    let counts = samples.counts();
    assert_eq!((counts.mentions, counts.linked, counts.unknown, counts.out_of_dictionary), (14, 0, 7, 7));
    assert_eq!((counts.out_of_dictionary_names, counts.ignored_entities), (6, 2));
    assert_eq!(counts.examples, ["Q", "P", "w", "x", "y"]);
    let batch = samples.collate(&[0, 1, 2]).unwrap();
    batch.check().unwrap();
    assert_eq!(
        (batch.counts()[1], batch.shape("mention_positions"), batch.shape("entity_vectors")),
        (0, Ok([0]), Ok([0, 2]))
    );
}

#[test]
fn two_entities_in_a_mention_are_refused_with_their_line() {
    let error = |words| samples(&file(words), &config(32)).unwrap_err();
    let hint = "give all words of a mention one entity, or begin a mention with `B`";
    assert_eq!(
        error("O/- | B/X I/- I/Y"),
        format!("x.conll, line 5: the entity is `Y`, but the mention begins in line 3 with `X`; {hint}")
    );
    let plain = read("ab\tO\n", ConllLabels::IfPresent);
    assert_eq!(
        samples(&plain, &config(32)).unwrap_err(),
        "x.conll has no entities, but they are needed here; use a file with an entity column, and set `entity_column`"
    );
}

#[test]
fn batches_have_positions_and_vectors_of_linked_mentions() {
    let file = file("O/- B/X | B/Q B/Y I/Y B/- B/Z");
    let samples = samples(&file, &config(32)).unwrap();
    let batch = samples.collate(&[1, 0]).unwrap();
    batch.check().unwrap();
    // `ab` has two sub-tokens; the rows have twelve columns.
    assert_eq!(batch.shape("input_ids"), Ok([2, 12]));
    assert_eq!(batch.i32s("label_positions").unwrap(), [1, 3, 5, 7, 9, 13, 15]);
    assert_eq!(samples.tokens().word_positions(&[1, 0]).unwrap(), [vec![1, 3, 5, 7, 9], vec![13, 15]]);
    assert_eq!(batch.i32s("mention_positions").unwrap(), [3, 9, 15]);
    assert_eq!(batch.shape("entity_vectors"), Ok([3, 2]));
    assert_eq!(batch.f32s("entity_vectors").unwrap(), [0.0, 1.0, 0.6, 0.8, 1.0, 0.0]);
    assert_eq!(batch.counts(), [7, 3]);
    // The other arrays are those of the samples without entities.
    let tokens = samples.tokens().collate(&[1, 0]).unwrap();
    assert!(tokens.arrays().all(|(name, array)| batch.array(name) == Ok(array)));
    assert_eq!(samples.lengths(), samples.tokens().lengths());
    assert_eq!(samples.collate(&[9]).unwrap_err().to_string(), "there is no sample 9; there are 2");
    let empty = samples.collate(&[]).unwrap();
    assert_eq!((empty.counts(), empty.shape("entity_vectors")), (&[0, 0][..], Ok([0, 2])));

    let all = TokenSampleConfig { label_all: true, ..config(32) };
    let all = self::samples(&file, &all).unwrap().collate(&[1, 0]).unwrap();
    assert_eq!((all.counts(), all.i32s("mention_positions").unwrap()), (&[14, 3][..], &[3, 9, 15][..]));

    let plain = read("ab\nab\n", ConllLabels::IfPresent);
    let plain = EntitySamples::new(&plain, None, &table(), &tokenizer(), &config(32)).unwrap();
    let batch = plain.collate(&[0]).unwrap();
    assert_eq!((batch.counts(), batch.i32s("mention_positions").unwrap().len()), (&[0, 0][..], 0));
}

#[test]
fn a_mention_belongs_to_the_window_of_its_first_word() {
    use GoldEntity::Linked;
    // Each window has three words of two sub-tokens.
    let file = file("O/- B/X I/X I/X B/Y O/-");
    let windows = TokenSampleConfig { overlap_words: 0, ..config(8) };
    let found = samples(&file, &windows).unwrap();
    assert_eq!(mentions(&found), [vec![(1..3, Linked(0))], vec![(0..1, NONE), (1..2, Linked(1))]]);
    assert_eq!((found.counts().mentions, found.counts().unknown, found.counts().lost), (2, 0, 0));
    assert_eq!(found.collate(&[1]).unwrap().i32s("mention_positions").unwrap(), [3]);
    let truncated = TokenSampleConfig { long_sentences: LongSentences::Truncate, ..config(8) };
    let found = samples(&file, &truncated).unwrap();
    assert_eq!((mentions(&found), found.counts().lost), (vec![vec![(1..3, Linked(0))]], 1));
}

#[test]
fn fingerprints_differ_with_mentions_and_tables() {
    let fingerprint = |words: &str, vectors: &str| {
        let labels = LabelSet::found(["O", "B", "I"]);
        let samples = EntitySamples::new(&file(words), Some(&labels), &table_of(vectors), &tokenizer(), &config(32));
        samples.unwrap().fingerprint()
    };
    let first = fingerprint("B/X I/X O/-", "X 1 0\nY 0 1\n");
    assert_eq!((first.len(), &first), (16, &fingerprint("B/X I/- O/-", "X 2 0\nY 0 2\n")));
    for (words, vectors) in [
        ("B/Y I/Y O/-", "X 1 0\nY 0 1\n"),
        ("B/- I/- O/-", "X 1 0\nY 0 1\n"),
        ("B/Q I/Q O/-", "X 1 0\nY 0 1\n"),
        ("B/X B/X O/-", "X 1 0\nY 0 1\n"),
        ("B/X I/X O/-", "X 1 0\nY 1 1\n"),
    ] {
        assert_ne!(first, fingerprint(words, vectors), "{words} {vectors}");
    }
}

/// A tag and an entity. Mentions with different entities are begun with `B`.
fn word() -> impl Strategy<Value = (&'static str, &'static str)> {
    prop::sample::select(
        &[("O", "-"), ("O", "X"), ("B-p", "X"), ("B-p", "-"), ("B-q", "Q"), ("I-p", "-"), ("I-q", "-")][..],
    )
}

proptest! {
    #[test]
    fn perfect_predictions_have_perfect_scores_in_any_windows(
        sentences in prop::collection::vec(prop::collection::vec(word(), 1..25), 1..5),
        max_seq_length in 8usize..20, overlap_words in 0usize..6, label_all: bool,
    ) {
        let line = |(tag, entity): &(&str, &str)| format!("{tag}/{entity}");
        let text: Vec<String> =
            sentences.iter().map(|words| words.iter().map(line).collect::<Vec<_>>().join(" ")).collect();
        let file = file(&text.join(" | "));
        let config = TokenSampleConfig { overlap_words, label_all, ..config(max_seq_length) };
        let samples = samples(&file, &config).unwrap();
        let (mut sums, mut linked) = (LinkSums::default(), 0);
        for sample in 0..samples.tokens().len() as u32 {
            let window = samples.tokens().window(sample).unwrap();
            let words = file.sentence(window.sentence);
            let tags: Vec<&str> = window.labelled.clone().filter_map(|word| file.label(words.start + word)).collect();
            let spans = entity_spans(TagScheme::Conlleval, &tags).unwrap();
            let gold = samples.mentions(sample);
            let entity = |mention: &GoldMention| match mention.entity {
                GoldEntity::Linked(id) => Some(id),
                _ => None,
            };
            let predicted = spans.iter().map(|span| {
                let words = span.start..span.end;
                let own = gold.iter().find(|mention| mention.words == words);
                PredictedMention { words, entity: own.and_then(entity) }
            });
            let given: Vec<u32> = gold.iter().filter_map(entity).collect();
            sums.add(&LinkSums::of(gold, &predicted.collect::<Vec<_>>(), &given).unwrap());

            let batch = samples.collate(&[sample]).unwrap();
            batch.check().unwrap();
            prop_assert_eq!(batch.counts()[1] as usize, given.len());
            let labelled = batch.i32s("label_positions").unwrap();
            prop_assert!(batch.i32s("mention_positions").unwrap().iter().all(|at| labelled.contains(at)));
            linked += given.len();
        }
        prop_assert!(sums.mention_score().support == 0 || sums.mention_score().f1 == 1.0);
        prop_assert!(linked == 0 || (sums.accuracy() == 1.0 && sums.link_score().precision == 1.0));
        let counts = samples.counts();
        prop_assert_eq!((counts.linked, counts.lost), (linked, 0));
        prop_assert_eq!(counts.linked + counts.unknown + counts.out_of_dictionary, counts.mentions);
        prop_assert_eq!(sums.link_score().support as usize, counts.linked + counts.out_of_dictionary);
        let plain = TokenSamples::new(&file, None, &tokenizer(), &config).unwrap();
        prop_assert_eq!(plain.len(), samples.tokens().len());
    }

    #[test]
    fn any_tags_and_entities_give_samples_or_an_error(
        words in prop::collection::vec(("[BIESOX.é-]-{0,2}[pq]?|\\PC{1,3}", "[XYQ-]{0,2}"), 1..40),
        max_seq_length in 8usize..20, truncates: bool,
    ) {
        let lines: String = words.iter().map(|(tag, entity)| format!("ab\t{tag}\t{entity}\n")).collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.conll");
        std::fs::write(&path, lines).unwrap();
        let columns = ConllColumns { token_column: 0, label_column: 1, entity_column: Some(-1) };
        let Ok(file) = ConllFile::read(&path, &columns, ConllLabels::Required) else { return Ok(()) };
        let long_sentences = if truncates { LongSentences::Truncate } else { LongSentences::Windows };
        let Ok(samples) = samples(&file, &TokenSampleConfig { long_sentences, ..config(max_seq_length) }) else {
            return Ok(());
        };
        for sample in 0..samples.tokens().len() as u32 {
            let labelled = samples.tokens().window(sample).unwrap().labelled.len();
            for GoldMention { words, .. } in samples.mentions(sample) {
                prop_assert!(words.start < words.end && words.end <= labelled);
            }
            samples.collate(&[sample]).unwrap().check().unwrap();
        }
    }
}
