//! Translation, from two text files to a score: it learns, any mix of workers computes what one
//! device computes, and the output has one line per input line.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fs_err as fs;
use hetseq_random::Key;

use crate::cluster::{Job, codes};
use crate::data::scratch;
use crate::reference::Reference;
use crate::run_dir::RunDir;

const NOUNS: u64 = 12;
const ADJECTIVES: u64 = 8;

/// Sentences of a small artificial language and their translations: all words differ, adjectives
/// follow their nouns, and a sentence ends in a full stop without a space.
fn pairs(seed: u64, count: u64) -> [String; 2] {
    let word = |stem: char, n: u64, ending: &str| format!("{stem}{}{ending}", char::from(b'a' + n as u8));
    let mut texts = [String::new(), String::new()];
    for sentence in 0..count {
        let key = Key::root(seed).index(sentence);
        for phrase in 0..1 + key.below(0, 3) {
            let (adjective, noun) = (key.below(1 + 2 * phrase, ADJECTIVES), key.below(2 + 2 * phrase, NOUNS));
            let space = if phrase > 0 { " " } else { "" };
            let _ = write!(texts[0], "{space}{} {}", word('s', adjective, "o"), word('t', noun, "u"));
            let _ = write!(texts[1], "{space}{} {}", word('k', noun, "i"), word('l', adjective, "em"));
        }
        texts.iter_mut().for_each(|text| text.push_str(".\n"));
    }
    texts
}

/// A directory with the text, the output of `hetseq prep translate` (`data`) and a config.
fn corpus() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = scratch().join("languages");
        fs::create_dir_all(&dir).unwrap();
        for (name, seed, count) in [("train", 1, 2000), ("valid", 2, 100), ("test", 3, 100)] {
            for (text, language) in pairs(seed, count).iter().zip(["src", "tgt"]) {
                fs::write(dir.join(format!("{name}.{language}")), text).unwrap();
            }
        }
        let job = Job::new(["prep", "translate", "--source", "train.src", "--target", "train.tgt"]);
        let job = job.args(["--valid-source", "valid.src", "--valid-target", "valid.tgt"]);
        job.args(["--out", "data", "--vocab-size", "120"]).in_dir(&dir).succeed();
        fs::write(dir.join("run.toml"), RUN).unwrap();
        dir
    })
}

const RUN: &str = r#"
[run]
task = "translation"
devices = "cpu:1"

[task]
data = "data"
model = "tiny"
dropout = 0.0

[batch]
global = "600 tokens"

[optim]
name = "adam"
betas = [0.9, 0.98]
lr = 3e-3
schedule = { kind = "inverse-sqrt", warmup_updates = 50 }

[valid]
every = "never"
"#;

/// `hetseq train` in the directory of the corpus, with one device per rank.
pub(crate) fn train(dir: &RunDir, updates: u64) -> Job {
    Job::train("run.toml", corpus(), dir, updates)
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

#[test]
fn a_model_learns_to_translate() {
    let dir = RunDir::new();
    let job = train(&dir, 300).set("run.devices", "cpu:2").set("valid.every", "100 updates");
    job.set("checkpoint.every", "100 updates").set("checkpoint.best", "bleu").succeed();
    // All words differ and change their order: a copy of the source would only match the full stop.
    let output = Job::new(["eval", "run.toml", "--json"]).in_dir(corpus()).ranks(2);
    let output = output.set("run.dir", dir.path().display()).set("run.max_updates", 1).succeed();
    let output: serde_json::Value = serde_json::from_str(&output).unwrap();
    let value = |name: &str| output[name].as_f64().unwrap();
    eprintln!("BLEU {:.1}, perplexity {:.3}", value("bleu"), value("perplexity"));
    assert!(value("bleu") > 90.0 && value("perplexity") < 1.5, "{output}");
    // With label smoothing even a perfect model has a loss.
    assert!(value("loss") > value("perplexity").ln(), "{output}");

    // Translates the test set with the command.
    let out = dir.path().join("test.out");
    let generate = || Job::new(["generate"]).arg(dir.path()).args(["--input", "test.src"]).in_dir(corpus());
    generate().arg("--out").arg(&out).succeed();
    let score = Job::new(["score"]).arg(&out).arg("test.tgt").arg("--json").in_dir(corpus()).succeed();
    let score: serde_json::Value = serde_json::from_str(&score).unwrap();
    let text = fs::read_to_string(&out).unwrap();
    assert_eq!(lines(&text).len(), 100);
    assert!(score.to_string().contains("tok:13a"), "{score}");
    // Greedy search on one device with small batches.
    let greedy = generate().args(["--beam", "1", "--devices", "cpu:1", "--batch-tokens", "30"]).succeed();
    let same = lines(&greedy).iter().zip(lines(&text)).filter(|(a, b)| *a == b).count();
    assert!(same > 95, "{same} of 100 lines are the same");
    let several = generate().args(["--n-best", "3", "--beam", "4"]).succeed();
    assert_eq!(lines(&several).len(), 300);
    assert!(lines(&several)[3].starts_with("2\t-"), "{several}");

    // An export has no config of the run. Its config.json names a class only if transformers has it.
    let export = dir.path().join("export");
    Job::new(["export"]).arg(dir.path()).arg("--out").arg(&export).succeed();
    let path = export.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("architectures");
    fs::write(&path, config.to_string()).unwrap();
    let output = Job::new(["generate"]).arg(&export).args(["--input", "test.src"]).in_dir(corpus()).succeed();
    assert_eq!(output, text);
}

#[test]
fn every_input_line_gives_one_output_line() {
    let dir = RunDir::new();
    train(&dir, 1).set("task.max_positions", 24).set("checkpoint.every", "1 updates").succeed();
    let long = "so tu ".repeat(40);
    let input = dir.path().join("input.txt");
    fs::write(&input, format!("sao tau.\n\n  \r\n{long}\nsbo tbu.")).unwrap();
    let job = Job::new(["generate"]).arg(dir.path()).arg("--input").arg(&input);
    let ended = job.run();
    assert_eq!(codes(&ended), [Some(0)], "{ended:#?}");
    assert_eq!(lines(&ended[0].stdout).len(), 5, "{ended:#?}");
    assert_eq!(lines(&ended[0].stdout)[1..3], ["", ""]);
    let stderr = &ended[0].stderr;
    assert!(stderr.contains("line 2 of") && stderr.contains("has no words"), "{stderr}");
    assert!(stderr.contains("line 4 of") && stderr.contains("tokens were cut to the model's 24"), "{stderr}");
    fs::write(&input, b"sao tau.\nsa\xff\n").unwrap();
    let ended = Job::new(["generate"]).arg(dir.path()).arg("--input").arg(&input).run();
    assert!(codes(&ended) == [Some(2)] && ended[0].stderr.contains("line 2"), "{ended:#?}");
    let ended = Job::new(["generate"]).arg(dir.path().join("nowhere")).run();
    assert!(codes(&ended) == [Some(2)] && ended[0].stderr.contains("there is no checkpoint in"), "{ended:#?}");
}

#[test]
fn any_mix_of_workers_computes_what_one_device_computes() {
    const UPDATES: u64 = 100;
    let dir = RunDir::new();
    let traced = |dir: &RunDir| train(dir, UPDATES).set("run.checksum_every", 1);
    traced(&dir).succeed();
    let reference = Reference::of(dir, UPDATES);
    for (name, weights) in [("7:2:1", Some([7, 2, 1])), ("measured", None)] {
        let dir = RunDir::new();
        let job = traced(&dir);
        match weights {
            Some(weights) => job.weights(&weights),
            None => job.ranks(3),
        }
        .succeed();
        reference.assert_losses(&dir, UPDATES, name);
    }
}

/// Number of tokens of the longest sentence of the corpus, in either language.
fn longest_sentence() -> u64 {
    let output = fs::read(corpus().join("data/corpus.json")).unwrap();
    let output: serde_json::Value = serde_json::from_slice(&output).unwrap();
    let lengths =
        ["train", "valid"].map(|split| ["source", "target"].map(|side| output[split][side]["longest"].clone()));
    lengths.as_flattened().iter().map(|longest| longest.as_u64().unwrap()).max().unwrap()
}

#[test]
fn learned_positions_fit_the_longest_sentence_exactly() {
    let dir = RunDir::new();
    let job = train(&dir, 2).set("task.positions", "learnt").set("task.pad_to_multiple", 64);
    job.set("task.max_positions", longest_sentence()).set("task.bleu", false).succeed();
}

#[test]
fn a_pair_that_fits_no_device_is_refused_before_the_first_update() {
    let dir = RunDir::new();
    // Enough for the first updates, which have short pairs. A pair counts the tokens of both
    // sentences.
    let job = train(&dir, 50).set("batch.global", 1).set("batch.curriculum_epochs", 1);
    let ended = job.set("batch.max_tokens", longest_sentence()).run();
    assert!(codes(&ended) == [Some(2)] && ended[0].stderr.contains("fits no device"), "{ended:#?}");
    assert!(!dir.path().join("metrics.jsonl").exists() || dir.losses().is_empty());
}

#[test]
fn validation_handles_sentences_longer_than_in_training() {
    let dir = RunDir::new();
    for (language, words) in [("src", "so tu "), ("tgt", "ku lem ")] {
        let short = format!("{words}.\n").repeat(60);
        fs::write(dir.path().join(format!("train.{language}")), &short).unwrap();
        fs::write(dir.path().join(format!("valid.{language}")), format!("{short}{}.\n", words.repeat(20))).unwrap();
    }
    let job = Job::new(["prep", "translate", "--source", "train.src", "--target", "train.tgt", "--out", "data"]);
    let job = job.args(["--valid-source", "valid.src", "--valid-target", "valid.tgt", "--max-length", "500"]);
    job.args(["--vocab-size", "100"]).in_dir(dir.path()).succeed();
    // The probe only measures training samples. Once without and once with a limit by the user.
    for (key, value) in [("batch.global", "1"), ("batch.max_tokens", "60")] {
        let run = RunDir::new();
        let job = train(&run, 2).set("task.data", dir.path().join("data").display()).set("task.bleu", false);
        job.set(key, value).set("valid.every", "1 updates").succeed();
        assert!(run.path().join("checkpoints").exists());
    }
}

#[test]
fn invalid_settings_are_refused() {
    let dir = RunDir::new();
    for (key, value, expected) in [
        ("task.model", "\"huge\"", "unknown value `huge`. Possible values: tiny, small, iwslt, base, big"),
        ("task.heads", "5", "d_model = 64: must be divisible by encoder_attention_heads = 5"),
        ("task.label_smoothing", "1.0", "task.label_smoothing = 1 must be at least 0 and below 1"),
        ("task.bleu_beam", "65536", "task.bleu_beam = 65536 must be 1 to 1000"),
        ("task.max_positions", "3", "the model has 3 positions, but sentences have up to"),
        ("task.data", "\"nowhere\"", "nowhere"),
        ("task.layer", "3", "task.layer"),
    ] {
        let ended = train(&dir, 1).set(key, value).run();
        assert!(codes(&ended) == [Some(2)] && ended[0].stderr.contains(expected), "{key}: {ended:#?}");
    }
}
