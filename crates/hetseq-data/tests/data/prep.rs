//! Preparing text: the same bytes on any number of cores and after any interruption, and what is refused.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use hetseq_data::prep::{Hdf5Settings, PrepFormat, PrepSettings, Prepared, VocabularySource, Watch, prepare};
use hetseq_data::pretrain::{PretrainConfig, PretrainData};
use hetseq_data::source::corpus::{CorpusSplit, Manifest, TextCorpus};
use hetseq_random::Key;

/// Ends a preparation when it has been asked so often.
struct StopAfter(AtomicUsize);

impl Watch for StopAfter {
    fn begin(&self, _what: &str, _bytes: u64) {}

    fn reached(&self, _bytes: u64) {}

    fn is_stopped(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
    }
}

fn to_the_end(settings: &PrepSettings) -> Manifest {
    match prepare(settings, &StopAfter(AtomicUsize::new(usize::MAX))).unwrap() {
        Prepared::Finished { manifest, .. } => manifest,
        Prepared::Stopped => panic!("nobody stopped it"),
    }
}

fn refused(settings: &PrepSettings) -> String {
    prepare(settings, &StopAfter(AtomicUsize::new(usize::MAX))).unwrap_err().to_string()
}

/// One sentence a line, a blank line between documents, about `megabytes` of it.
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

struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new(megabytes: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_text(&dir.path().join("text.txt"), megabytes, 1);
        Scene { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn settings(&self, output: &str, format: PrepFormat) -> PrepSettings {
        PrepSettings {
            inputs: vec![self.path("text.txt")],
            valid: Vec::new(),
            valid_fraction: 0.05,
            output: self.path(output),
            vocabulary: VocabularySource::Trained { size: 400, cased: false },
            sentences: None,
            format,
            shard_mib: Some(1),
            seed: 3,
        }
    }

    /// What a directory holds: names and bytes.
    fn content(&self, output: &str) -> BTreeMap<String, Vec<u8>> {
        let files = std::fs::read_dir(self.path(output)).unwrap().map(|entry| entry.unwrap());
        files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())).collect()
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
    let scene = Scene::new(3);
    for format in [PrepFormat::Compact, hdf5()] {
        let mut contents = Vec::new();
        for cores in [1, 5] {
            let output = format!("{cores}-{format:?}").chars().filter(|c| c.is_alphanumeric()).collect::<String>();
            let pool = rayon::ThreadPoolBuilder::new().num_threads(cores).build().unwrap();
            pool.install(|| to_the_end(&scene.settings(&output, format.clone())));
            contents.push(scene.content(&output));
        }
        assert!(contents[0].len() > 6, "{:?}", contents[0].keys());
        assert!(contents[0] == contents[1], "{:?} and {:?}", contents[0].keys(), contents[1].keys());
    }
}

#[test]
fn an_interrupted_preparation_goes_on_and_ends_with_the_same_bytes() {
    let scene = Scene::new(3);
    for format in [PrepFormat::Compact, hdf5()] {
        let name = if format == PrepFormat::Compact { "compact" } else { "hdf5" };
        to_the_end(&scene.settings(name, format.clone()));
        let output = format!("{name}-interrupted");
        let settings = scene.settings(&output, format);
        let mut interruptions = 0;
        // When there is a vocabulary, one chunk at a time.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        for patience in 0..100 {
            assert!(patience < 99, "it never ends");
            let has_vocabulary = settings.output.join("tokenizer.json").exists();
            let patience = if has_vocabulary { 1 } else { patience };
            match pool.install(|| prepare(&settings, &StopAfter(AtomicUsize::new(patience)))).unwrap() {
                Prepared::Finished { was_there, .. } => {
                    assert!(!was_there);
                    break;
                }
                Prepared::Stopped => interruptions += 1,
            }
        }
        assert!(interruptions >= 6, "{interruptions}");
        assert!(scene.content(name) == scene.content(&output));
        match prepare(&settings, &StopAfter(AtomicUsize::new(0))).unwrap() {
            Prepared::Finished { was_there, .. } => assert!(was_there),
            Prepared::Stopped => panic!("there was nothing to do"),
        }
    }
}

#[test]
fn a_preparation_that_was_killed_is_mended() {
    let scene = Scene::new(3);
    to_the_end(&scene.settings("whole", PrepFormat::Compact));
    let settings = scene.settings("killed", PrepFormat::Compact);
    // Stopped after the first part; then what a kill at the worst moments leaves is added.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let interrupt = |patience| {
        let prepared = pool.install(|| prepare(&settings, &StopAfter(AtomicUsize::new(patience)))).unwrap();
        assert!(matches!(prepared, Prepared::Stopped));
    };
    assert!((1..20).any(|patience| {
        interrupt(patience);
        scene.path("killed/tokenizer.json").exists()
    }));
    interrupt(1);
    assert!(scene.path("killed/parts/00000.json").exists() && !scene.path("killed/parts/00001.json").exists());
    let shard = scene.path("killed/train-00000.tokens");
    let half = std::fs::read(&shard).unwrap().split_off(1000);
    std::fs::write(&shard, half).unwrap();
    std::fs::write(scene.path("killed/train-00001.tokens"), "garbage").unwrap();
    std::fs::write(scene.path("killed/train-00002.tokens.77.tmp"), "garbage").unwrap();
    std::fs::write(scene.path("killed/parts/00001.json"), "{").unwrap();
    to_the_end(&settings);
    assert!(scene.content("whole") == scene.content("killed"), "also without what was left half written");
    // Killed after the last file, before it could clear away.
    std::fs::create_dir(scene.path("killed/parts")).unwrap();
    std::fs::write(scene.path("killed/prep.json"), "{}").unwrap();
    to_the_end(&settings);
    assert!(scene.content("whole") == scene.content("killed"));
}

#[test]
fn other_settings_other_input_and_other_directories_are_refused() {
    let scene = Scene::new(1);
    let settings = scene.settings("out", PrepFormat::Compact);
    assert!(matches!(prepare(&settings, &StopAfter(AtomicUsize::new(1))).unwrap(), Prepared::Stopped));
    for finished in [false, true] {
        if finished {
            to_the_end(&settings);
        }
        let other = PrepSettings {
            vocabulary: VocabularySource::Trained { size: 500, cased: true },
            seed: 4,
            ..settings.clone()
        };
        let error = refused(&other);
        for part in ["out", "vocabulary.trained: 400 there, 500 here", "seed: 3 there, 4 here", "another directory"] {
            assert!(error.contains(part), "{error}");
        }
        let error = refused(&PrepSettings { format: hdf5(), ..settings.clone() });
        assert!(error.contains("format.name"), "{error}");
        std::fs::write(scene.path("more.txt"), "One more document.\nIn two lines.\n").unwrap();
        let inputs = vec![scene.path("text.txt"), scene.path("more.txt")];
        let error = refused(&PrepSettings { inputs, ..settings.clone() });
        assert!(error.contains("input.files: 1 there, 2 here"), "{error}");
    }
    std::fs::create_dir(scene.path("full")).unwrap();
    std::fs::write(scene.path("full/thesis.doc"), "").unwrap();
    let error = refused(&scene.settings("full", PrepFormat::Compact));
    assert!(error.contains("thesis.doc"), "{error}");
}

#[test]
fn what_is_prepared_can_be_sampled_and_is_what_was_counted() {
    let scene = Scene::new(2);
    let manifest = to_the_end(&scene.settings("compact", PrepFormat::Compact));
    let text = std::fs::read_to_string(scene.path("text.txt")).unwrap();
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
        let corpus = TextCorpus::open(&scene.path("compact"), split).unwrap();
        corpus.verify().unwrap();
        let tokens: usize = corpus.shards().iter().map(|shard| shard.tokens()).sum();
        assert_eq!(tokens as u64, counts.tokens);
        let data = PretrainData::open(&scene.path("compact"), split, &PretrainConfig::default()).unwrap();
        let ids: Vec<u32> = (0..data.len() as u32).collect();
        let batch = data.collate(&ids, &|id| Key::root(1).index(u64::from(id))).unwrap();
        assert!(batch.input_ids.iter().all(|&id| (id as usize) < manifest.vocabulary));
    }
    let held_out = manifest.valid.documents as f64 / (manifest.train.documents + manifest.valid.documents) as f64;
    assert!((held_out - 0.05).abs() < 0.01, "{held_out}");
}

#[test]
fn masked_shards_have_each_sentence_once_per_pass() {
    let scene = Scene::new(1);
    let manifest = to_the_end(&scene.settings("hdf5", hdf5()));
    let config = PretrainConfig { vocabulary: Some(manifest.vocabulary), ..PretrainConfig::default() };
    let data = PretrainData::open(&scene.path("hdf5"), CorpusSplit::Train, &config).unwrap();
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
    PretrainData::open(&scene.path("hdf5"), CorpusSplit::Valid, &config).unwrap();
}

#[test]
fn held_out_files_and_a_given_vocabulary() {
    let scene = Scene::new(1);
    to_the_end(&scene.settings("first", PrepFormat::Compact));
    std::fs::create_dir(scene.path("held-out")).unwrap();
    write_text(&scene.path("held-out/a.txt"), 1, 2);
    let mut tokens = Vec::new();
    for (output, vocabulary) in [
        ("by-list", VocabularySource::Vocabulary { path: scene.path("first/vocab.txt"), cased: false }),
        ("by-json", VocabularySource::Tokenizer { path: scene.path("first/tokenizer.json") }),
    ] {
        let settings = PrepSettings {
            valid: vec![scene.path("held-out")],
            valid_fraction: 0.0,
            vocabulary,
            ..scene.settings(output, PrepFormat::Compact)
        };
        let manifest = to_the_end(&settings);
        assert!(manifest.valid.tokens > 100_000);
        tokens.push(
            ["tokenizer.json", "train-00000.tokens", "valid-00001.tokens"]
                .map(|name| scene.content(output)[name].clone()),
        );
    }
    assert!(tokens[0] == tokens[1]);
    assert_eq!(tokens[0][0], scene.content("first")["tokenizer.json"]);
}

#[test]
fn a_vocabulary_smaller_than_the_text_needs_is_noticed() {
    let scene = Scene::new(1);
    to_the_end(&scene.settings("out", PrepFormat::Compact));
    let small = PrepSettings {
        vocabulary: VocabularySource::Trained { size: 200, cased: false },
        ..scene.settings("small", PrepFormat::Compact)
    };
    to_the_end(&small);
    std::fs::copy(scene.path("small/tokenizer.json"), scene.path("out/tokenizer.json")).unwrap();
    let error = TextCorpus::open(&scene.path("out"), CorpusSplit::Train).unwrap_err().to_string();
    assert!(error.contains("the vocabulary has only 200 tokens") && error.contains("train-00000.tokens"), "{error}");
}

#[test]
fn what_is_not_finished_or_not_there_says_so() {
    let scene = Scene::new(1);
    let settings = PrepSettings { valid_fraction: 0.0, ..scene.settings("out", PrepFormat::Compact) };
    prepare(&settings, &StopAfter(AtomicUsize::new(1))).unwrap();
    let open = |split| PretrainData::open(&scene.path("out"), split, &PretrainConfig::default());
    let error = open(CorpusSplit::Train).unwrap_err().to_string();
    assert!(error.contains("not a finished preparation") && error.contains("again"), "{error}");
    to_the_end(&settings);
    open(CorpusSplit::Train).unwrap();
    let error = open(CorpusSplit::Valid).unwrap_err().to_string();
    assert!(error.contains("no valid split") && error.contains("--valid-fraction"), "{error}");
    let nowhere = PretrainData::open(&scene.path("nowhere"), CorpusSplit::Train, &PretrainConfig::default());
    assert!(nowhere.unwrap_err().to_string().contains("no directory"));
    std::fs::remove_file(scene.path("out/train-00000.tokens")).unwrap();
    let error = open(CorpusSplit::Train).unwrap_err().to_string();
    assert!(error.contains("train-00000.tokens"), "{error}");
}
