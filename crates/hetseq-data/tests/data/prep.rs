//! Tests of BERT preparation: the same bytes on any number of cores and after any interruption, and
//! refused inputs.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use hetseq_data::prep::PrepOutcome;
use hetseq_data::prep::bert::{Hdf5Settings, PrepFormat, PrepSettings, VocabularySource, prepare};
use hetseq_data::pretrain::{PretrainConfig, PretrainData};
use hetseq_data::source::corpus::{CorpusManifest, CorpusSplit, TextCorpus};
use hetseq_data::source::text::DEFAULT_FIELD;
use hetseq_random::Key;

use crate::prep_runs::{StopAfter, assert_same_on_any_cores, content};

fn prepare_all(settings: &PrepSettings) -> CorpusManifest {
    match prepare(settings, &StopAfter::never()).unwrap() {
        PrepOutcome::Finished { manifest, .. } => manifest,
        PrepOutcome::Stopped => panic!("it must not stop"),
    }
}

fn refused(settings: &PrepSettings) -> String {
    prepare(settings, &StopAfter::never()).unwrap_err().to_string()
}

/// Writes about `megabytes` of text: one sentence per line, a blank line between documents.
fn write_text(path: &Path, megabytes: usize, seed: u64) {
    let key = Key::root(seed);
    let mut text = String::new();
    let mut at = 0;
    while text.len() < megabytes << 20 {
        let key = key.index(at);
        for word in 0..4 + key.below(0, 20) {
            let rank = key.below(2 * word + 1, 60) * key.below(2 * word + 2, 60);
            let _ = write!(
                text,
                "{}{}{} ",
                ["ka", "lo", "mi"][rank as usize % 3],
                ["s", "ta", "ren", "o"][rank as usize / 3 % 4],
                rank % 97
            );
        }
        text.push_str(if key.below(1, 12) == 0 { ".\n\n" } else { ".\n" });
        at += 1;
    }
    std::fs::write(path, text).unwrap();
}

/// A temporary directory with input text.
struct TestDir {
    temp: tempfile::TempDir,
}

impl TestDir {
    fn new(megabytes: usize) -> Self {
        let temp = tempfile::tempdir().unwrap();
        write_text(&temp.path().join("text.txt"), megabytes, 1);
        TestDir { temp }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn settings(&self, output: &str, format: PrepFormat) -> PrepSettings {
        PrepSettings {
            inputs: vec![self.path("text.txt")],
            valid: Vec::new(),
            valid_fraction: 0.05,
            output: self.path(output),
            vocabulary: VocabularySource::Trained { size: 400, cased: false },
            sentences: None,
            field: DEFAULT_FIELD.to_owned(),
            format,
            shard_mib: Some(1),
            seed: 3,
        }
    }
}

fn hdf5() -> PrepFormat {
    let (max_seq_length, max_predictions) = (64, 10);
    PrepFormat::Hdf5(Hdf5Settings {
        max_seq_length,
        max_predictions,
        dupe_factor: 2,
        short_seq_prob: 0.1,
        whole_word: true,
    })
}

#[test]
fn any_number_of_cores_writes_the_same_bytes() {
    let dir = TestDir::new(3);
    for format in [PrepFormat::Compact, hdf5()] {
        assert_same_on_any_cores(|cores| {
            let output = format!("{cores}-{format:?}").chars().filter(|c| c.is_alphanumeric()).collect::<String>();
            prepare_all(&dir.settings(&output, format.clone()));
            dir.path(&output)
        });
    }
}

#[test]
fn an_interrupted_preparation_resumes_and_gives_the_same_bytes() {
    let dir = TestDir::new(3);
    for format in [PrepFormat::Compact, hdf5()] {
        let name = if format == PrepFormat::Compact { "compact" } else { "hdf5" };
        prepare_all(&dir.settings(name, format.clone()));
        let output = format!("{name}-interrupted");
        let settings = dir.settings(&output, format);
        let mut interruptions = 0;
        // After the vocabulary is written, one chunk per attempt.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        for attempt in 0..100 {
            assert!(attempt < 99, "it never ends");
            let has_vocabulary = settings.output.join("tokenizer.json").exists();
            let polls = if has_vocabulary { 1 } else { attempt };
            match pool.install(|| prepare(&settings, &StopAfter::new(polls))).unwrap() {
                PrepOutcome::Finished { was_there, .. } => {
                    assert!(!was_there);
                    break;
                }
                PrepOutcome::Stopped => interruptions += 1,
            }
        }
        assert!(interruptions >= 6, "{interruptions}");
        assert!(content(&dir.path(name)) == content(&dir.path(&output)));
        match prepare(&settings, &StopAfter::new(0)).unwrap() {
            PrepOutcome::Finished { was_there, .. } => assert!(was_there),
            PrepOutcome::Stopped => panic!("there was nothing to do"),
        }
    }
}

#[test]
fn a_killed_preparation_is_completed() {
    let dir = TestDir::new(3);
    prepare_all(&dir.settings("whole", PrepFormat::Compact));
    let settings = dir.settings("killed", PrepFormat::Compact);
    // Stopped after the first part; then the files are added that a kill at the worst moments
    // leaves.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let interrupt = |polls| {
        let outcome = pool.install(|| prepare(&settings, &StopAfter::new(polls))).unwrap();
        assert!(matches!(outcome, PrepOutcome::Stopped));
    };
    assert!((1..20).any(|polls| {
        interrupt(polls);
        dir.path("killed/tokenizer.json").exists()
    }));
    interrupt(1);
    assert!(dir.path("killed/parts/00000.json").exists() && !dir.path("killed/parts/00001.json").exists());
    let shard = dir.path("killed/train-00000.tokens");
    let half = std::fs::read(&shard).unwrap().split_off(1000);
    std::fs::write(&shard, half).unwrap();
    std::fs::write(dir.path("killed/train-00001.tokens"), "garbage").unwrap();
    std::fs::write(dir.path("killed/train-00002.tokens.77.tmp"), "garbage").unwrap();
    std::fs::write(dir.path("killed/parts/00001.json"), "{").unwrap();
    prepare_all(&settings);
    assert!(content(&dir.path("whole")) == content(&dir.path("killed")), "half-written files must be gone");
    // Killed after the last file, before the temporary files were removed.
    std::fs::create_dir(dir.path("killed/parts")).unwrap();
    std::fs::write(dir.path("killed/prep.json"), "{}").unwrap();
    prepare_all(&settings);
    assert!(content(&dir.path("whole")) == content(&dir.path("killed")));
}

#[test]
fn changed_settings_changed_input_and_foreign_directories_are_refused() {
    let dir = TestDir::new(1);
    let settings = dir.settings("out", PrepFormat::Compact);
    assert!(matches!(prepare(&settings, &StopAfter::new(1)).unwrap(), PrepOutcome::Stopped));
    for finished in [false, true] {
        if finished {
            prepare_all(&settings);
        }
        let other = PrepSettings {
            vocabulary: VocabularySource::Trained { size: 500, cased: true },
            seed: 4,
            ..settings.clone()
        };
        let error = refused(&other);
        for part in ["out", "vocabulary.trained: was 400, now 500", "seed: was 3, now 4", "another directory"] {
            assert!(error.contains(part), "{error}");
        }
        let error = refused(&PrepSettings { format: hdf5(), ..settings.clone() });
        assert!(error.contains("format.name"), "{error}");
        std::fs::write(dir.path("more.txt"), "One more document.\nIn two lines.\n").unwrap();
        let inputs = vec![dir.path("text.txt"), dir.path("more.txt")];
        let error = refused(&PrepSettings { inputs, ..settings.clone() });
        assert!(error.contains("input.files: was 1, now 2"), "{error}");
    }
    std::fs::create_dir(dir.path("full")).unwrap();
    std::fs::write(dir.path("full/thesis.doc"), "").unwrap();
    let error = refused(&dir.settings("full", PrepFormat::Compact));
    assert!(error.contains("thesis.doc"), "{error}");
}

#[test]
fn the_output_can_be_sampled_and_matches_the_counts() {
    let dir = TestDir::new(2);
    let manifest = prepare_all(&dir.settings("compact", PrepFormat::Compact));
    let text = std::fs::read_to_string(dir.path("text.txt")).unwrap();
    assert_eq!(
        manifest.train.documents + manifest.valid.documents,
        text.split("\n\n").filter(|d| !d.trim().is_empty()).count() as u64
    );
    assert_eq!(
        manifest.train.sentences + manifest.valid.sentences,
        text.lines().filter(|l| !l.is_empty()).count() as u64
    );
    assert_eq!(manifest.train.unknown, 0);
    for (split, counts) in [(CorpusSplit::Train, manifest.train), (CorpusSplit::Valid, manifest.valid)] {
        let corpus = TextCorpus::open(&dir.path("compact"), split).unwrap();
        corpus.verify().unwrap();
        let tokens: usize = corpus.shards().iter().map(|shard| shard.tokens()).sum();
        assert_eq!(tokens as u64, counts.tokens);
        let data = PretrainData::open(&dir.path("compact"), split, &PretrainConfig::default()).unwrap();
        let ids: Vec<u32> = (0..data.len() as u32).collect();
        let batch = data.collate(&ids, &|id| Key::root(1).index(u64::from(id))).unwrap();
        assert!(batch.input_ids.iter().all(|&id| (id as usize) < manifest.vocabulary));
    }
    let held_out = manifest.valid.documents as f64 / (manifest.train.documents + manifest.valid.documents) as f64;
    assert!((held_out - 0.05).abs() < 0.01, "{held_out}");
}

#[test]
fn hdf5_shards_use_each_sentence_once_per_pass() {
    let dir = TestDir::new(1);
    let manifest = prepare_all(&dir.settings("hdf5", hdf5()));
    let config = PretrainConfig { vocabulary: Some(manifest.vocabulary), ..PretrainConfig::default() };
    let data = PretrainData::open(&dir.path("hdf5"), CorpusSplit::Train, &config).unwrap();
    assert!(matches!(data, PretrainData::Stored(_)));
    let ids: Vec<u32> = (0..data.len() as u32).collect();
    let batch = data.collate(&ids, &|_| Key::root(1)).unwrap();
    let text = batch.tokens() - 3 * data.len() as u64;
    let expected = 2 * manifest.train.tokens;
    assert!(text <= expected && text as f64 > 0.985 * expected as f64, "{text} of {expected} tokens");
    let labels = batch.next_sentence.unwrap();
    let random = labels.iter().sum::<i32>() as f64 / labels.len() as f64;
    let n = labels.len() as f64 / 2.0;
    assert!((random - 0.5).abs() < 5.0 * (0.25 / n).sqrt() + 0.01, "{random} of {} samples", labels.len());
    let masked = batch.masked_ids.len() as f64 / text as f64;
    assert!((0.13..0.155).contains(&masked), "{masked}");
    assert!(batch.masked_ids.iter().all(|&id| id > 4));
    assert!(manifest.shards.iter().any(|shard| shard.file == "validation-00000-00.hdf5"));
    PretrainData::open(&dir.path("hdf5"), CorpusSplit::Valid, &config).unwrap();
}

#[test]
fn held_out_files_and_a_given_vocabulary_work() {
    let dir = TestDir::new(1);
    prepare_all(&dir.settings("first", PrepFormat::Compact));
    std::fs::create_dir(dir.path("held-out")).unwrap();
    write_text(&dir.path("held-out/a.txt"), 1, 2);
    let mut tokens = Vec::new();
    for (output, vocabulary) in [
        ("by-list", VocabularySource::Vocabulary { path: dir.path("first/vocab.txt"), cased: false }),
        ("by-json", VocabularySource::Tokenizer { path: dir.path("first/tokenizer.json") }),
    ] {
        let settings = PrepSettings {
            valid: vec![dir.path("held-out")],
            valid_fraction: 0.0,
            vocabulary,
            ..dir.settings(output, PrepFormat::Compact)
        };
        let manifest = prepare_all(&settings);
        assert!(manifest.valid.tokens > 100_000);
        tokens.push(
            ["tokenizer.json", "train-00000.tokens", "valid-00001.tokens"]
                .map(|name| content(&dir.path(output))[name].clone()),
        );
    }
    assert!(tokens[0] == tokens[1]);
    assert_eq!(tokens[0][0], content(&dir.path("first"))["tokenizer.json"]);
}

#[test]
fn a_vocabulary_that_is_too_small_is_refused() {
    let dir = TestDir::new(1);
    prepare_all(&dir.settings("out", PrepFormat::Compact));
    let small = PrepSettings {
        vocabulary: VocabularySource::Trained { size: 200, cased: false },
        ..dir.settings("small", PrepFormat::Compact)
    };
    prepare_all(&small);
    std::fs::copy(dir.path("small/tokenizer.json"), dir.path("out/tokenizer.json")).unwrap();
    let error = TextCorpus::open(&dir.path("out"), CorpusSplit::Train).unwrap_err().to_string();
    assert!(error.contains("the vocabulary has only 200 tokens") && error.contains("train-00000.tokens"), "{error}");
}

#[test]
fn an_unfinished_or_missing_directory_is_reported() {
    let dir = TestDir::new(1);
    let settings = PrepSettings { valid_fraction: 0.0, ..dir.settings("out", PrepFormat::Compact) };
    prepare(&settings, &StopAfter::new(1)).unwrap();
    let open = |split| PretrainData::open(&dir.path("out"), split, &PretrainConfig::default());
    let error = open(CorpusSplit::Train).unwrap_err().to_string();
    assert!(error.contains("not a complete corpus") && error.contains("again"), "{error}");
    prepare_all(&settings);
    open(CorpusSplit::Train).unwrap();
    let error = open(CorpusSplit::Valid).unwrap_err().to_string();
    assert!(error.contains("no valid split") && error.contains("--valid-fraction"), "{error}");
    let nowhere = PretrainData::open(&dir.path("nowhere"), CorpusSplit::Train, &PretrainConfig::default());
    assert!(nowhere.unwrap_err().to_string().contains("no directory"));
    std::fs::remove_file(dir.path("out/train-00000.tokens")).unwrap();
    let error = open(CorpusSplit::Train).unwrap_err().to_string();
    assert!(error.contains("train-00000.tokens"), "{error}");
}
