//! Fine-tuning: words and texts are learned, any mix of workers computes what one device computes,
//! a checkpoint is a Hugging Face directory with its labels, and wrong files are refused.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fs_err as fs;
use hetseq_metrics::Event;
use hetseq_random::Key;

use crate::cluster::{Job, codes};
use crate::data::corpus_dir;
use crate::reference::Reference;
use crate::run_dir::RunDir;

const NAMES: [&str; 6] = ["anna", "bert", "carl", "dora", "emil", "frida"];
const PLACES: [&str; 4] = ["rome", "oslo", "lima", "bonn"];
const WORDS: [&str; 8] = ["the", "a", "sees", "meets", "near", "old", "new", "##s"];

/// Sentences of words: "old anna meets bert near new rome". A name has one or two words, and what
/// it is depends on the word before it: after "new" it is a place.
fn sentences(seed: u64, count: u64) -> String {
    let mut text = String::new();
    for sentence in 0..count {
        let key = Key::root(seed).index(sentence);
        let pick = |at: u64, from: &[&'static str]| from[key.below(at, from.len() as u64) as usize];
        let _ = writeln!(text, "{}\tO", pick(0, &["the", "old", "a"]));
        let _ = writeln!(text, "{}\tB-person", pick(1, &NAMES));
        if key.below(2, 2) == 0 {
            let _ = writeln!(text, "{}\tI-person", pick(3, &NAMES));
        }
        let _ = writeln!(text, "{}\tO", pick(4, &["sees", "meets"]));
        // Two pieces: the label is that of the first.
        let _ = writeln!(text, "{}s\tB-place", pick(5, &PLACES));
        text.push('\n');
    }
    text
}

/// Pairs of texts that are about the same person, or not; and a number for the persons.
fn pairs(seed: u64, count: u64) -> String {
    let mut text = "first\tsecond\tsame\tscore\n".to_owned();
    for row in 0..count {
        let key = Key::root(seed).index(row);
        let name = |at: u64| NAMES[key.below(at, 2) as usize];
        let (first, second) = (name(0), name(1));
        let same = if first == second { "yes" } else { "no" };
        let score = f64::from(first == NAMES[0]) + f64::from(second == NAMES[0]) / 2.0;
        let _ = writeln!(text, "the {first} sees\ta {second} meets\t{same}\t{score}");
    }
    text
}

fn corpus() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = corpus_dir("labels", NAMES.iter().chain(&PLACES).chain(&WORDS));
        for (name, seed, count) in [("train", 1, 400), ("dev", 2, 60)] {
            fs::write(dir.join(format!("{name}.conll")), sentences(seed, count)).unwrap();
            fs::write(dir.join(format!("{name}.tsv")), pairs(seed, count)).unwrap();
        }
        fs::write(dir.join("tokens.toml"), config("token-classification", "train.conll", "dev.conll", "")).unwrap();
        let columns = "text = \"first\"\nsecond_text = \"second\"\nlabel = \"same\"\n";
        fs::write(dir.join("texts.toml"), config("sequence-classification", "train.tsv", "dev.tsv", columns)).unwrap();
        dir
    })
}

fn config(task: &str, train: &str, valid: &str, more: &str) -> String {
    format!(
        "[run]\ntask = \"{task}\"\ndevices = \"cpu:1\"\n[task]\ntrain = \"{train}\"\nvalid = \"{valid}\"\n\
         tokenizer = \"vocab.txt\"\nmodel = \"tiny\"\ndropout = 0.1\n{more}[batch]\nglobal = 16\n\
         [optim]\nname = \"adamw\"\nlr = 1e-3\n[valid]\nevery = \"never\"\n"
    )
}

pub(crate) fn train(name: &str, dir: &RunDir, updates: u64) -> Job {
    Job::train(name, corpus(), dir, updates)
}

/// The metrics of the last checkpoint.
fn evaluated(name: &str, dir: &RunDir, ranks: usize) -> serde_json::Value {
    let job = Job::new(["eval", name, "--json"]).in_dir(corpus()).ranks(ranks);
    let job = job.set("run.dir", dir.path().display()).set("run.max_updates", 1);
    serde_json::from_str(&job.succeed()).unwrap()
}

#[test]
fn entities_are_found_in_words() {
    let dir = RunDir::new();
    train("tokens.toml", &dir, 120).set("run.devices", "cpu:2").set("checkpoint.best", "f1").succeed();
    let [one, three] = [1, 3].map(|ranks| evaluated("tokens.toml", &dir, ranks));
    for name in ["f1", "precision", "recall", "accuracy", "f1.person", "f1.place"] {
        assert!(one[name].as_f64().unwrap() > 0.95, "{one}");
        assert_eq!(one[name], three[name], "over several ranks as on one device");
    }
    assert_words_are_predicted(&dir, one["accuracy"].as_f64().unwrap());
    // A directory that transformers loads.
    let checkpoint = dir.checkpoint("last");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(checkpoint.join("config.json")).unwrap()).unwrap();
    assert_eq!(json["architectures"][0], "BertForTokenClassification");
    assert_eq!((&json["id2label"]["0"], &json["label2id"]["I-person"]), (&"O".into(), &3.into()));
    assert!(checkpoint.join("tokenizer.json").exists());

    // It can be the start of another run, with its classifier or a new one.
    let next = RunDir::new();
    let job = || train("tokens.toml", &next, 1).set("task.init", checkpoint.display()).arg("--resume").arg("never");
    job().succeed();
    assert!(next.losses()[&1] < 0.1, "{:?}", next.losses());
    // Another seed: with the first one, the new classifier would start as the old one did.
    let ended = job().set("task.new_head", true).set("run.seed", 9).run();
    assert_eq!(codes(&ended), [Some(0)], "{ended:#?}");
    assert!(ended[0].stderr.contains("initialized at random: classifier.weight, classifier.bias"), "{ended:#?}");
    assert!(next.losses()[&1] > 1.0, "{:?}", next.losses());
}

/// What `hetseq predict` writes for the file `input` of the corpus, line by line.
fn predicted(dir: &RunDir, input: &str, more: &[&str]) -> Vec<String> {
    let job = Job::new(["predict"]).arg(dir.path()).arg("--input").arg(input).args(more).in_dir(corpus());
    job.succeed().lines().map(str::to_owned).collect()
}

/// Every word of the validation file is predicted as evaluation did; words without labels too, and
/// a sentence of any length.
fn assert_words_are_predicted(dir: &RunDir, accuracy: f64) {
    let lines = predicted(dir, "dev.conll", &[]);
    let words: Vec<Vec<&str>> = lines.iter().filter(|line| !line.is_empty()).map(|l| l.split('\t').collect()).collect();
    let gold = fs::read_to_string(corpus().join("dev.conll")).unwrap();
    assert_eq!(lines.len(), gold.lines().count());
    assert!(gold.lines().zip(&lines).all(|(gold, line)| line.is_empty() || line.starts_with(&format!("{gold}\t"))));
    let correct = words.iter().filter(|columns| columns[1] == columns[2]).count();
    assert_eq!(correct as f64 / words.len() as f64, accuracy);

    // An export has no config of the run, and is a directory as transformers saves it.
    let export = dir.path().join("export");
    Job::new(["export"]).arg(dir.path()).arg("--out").arg(&export).succeed();
    let job = Job::new(["predict"]).arg(&export).arg("--input").arg("dev.conll").in_dir(corpus());
    assert_eq!(job.succeed().lines().collect::<Vec<_>>(), lines);

    let long = format!("{}anna\n\nold\nanna\nmeets\n", "the\n".repeat(5000));
    fs::write(dir.path().join("words.conll"), long).unwrap();
    let path = dir.path().join("words.conll").display().to_string();
    let lines = predicted(dir, &path, &["--devices", "cpu:2"]);
    assert_eq!(lines.len(), 5006, "a line per word, and one after each sentence");
    assert_eq!(lines[5002..5005], ["old\tO", "anna\tB-person", "meets\tO"]);
    let json: serde_json::Value = serde_json::from_str(&predicted(dir, &path, &["--json"])[1]).unwrap();
    assert_eq!(json["labels"], serde_json::json!(["O", "B-person", "O"]));
    assert!(json["probabilities"][1].as_f64().unwrap() > 0.5, "{json}");
}

#[test]
fn texts_get_classes_or_numbers() {
    let dir = RunDir::new();
    let job = train("texts.toml", &dir, 400).set("run.devices", "cpu:2").set("task.dropout", 0.0);
    job.set("checkpoint.best", "matthews").succeed();
    let [one, three] = [1, 3].map(|ranks| evaluated("texts.toml", &dir, ranks));
    for name in ["accuracy", "f1", "matthews"] {
        assert!(one[name].as_f64().unwrap() > 0.95, "{one}");
        assert_eq!(one[name], three[name], "over several ranks as on one device");
    }
    let lines = predicted(&dir, "dev.tsv", &[]);
    let gold = fs::read_to_string(corpus().join("dev.tsv")).unwrap();
    let labels = gold.lines().map(|line| line.split('\t').nth(2).unwrap()).skip(1);
    let correct = labels.zip(&lines[1..]).filter(|(label, line)| line.starts_with(&format!("{label}\t"))).count();
    assert_eq!((lines.len(), lines[0].as_str()), (61, "label\tprobability"));
    assert_eq!(correct as f64 / 60.0, one["accuracy"].as_f64().unwrap());
    // A table without labels, of other column names.
    let table = dir.path().join("new.csv");
    fs::write(&table, "a,b\nthe anna sees,a anna meets\nthe anna sees,a bert meets\n").unwrap();
    let sets = ["--set", "task.text=a", "--set", "task.second_text=b", "--json"];
    let lines = predicted(&dir, &table.display().to_string(), &sets);
    let json: Vec<serde_json::Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&json[0]["label"], &json[1]["label"]), (&"yes".into(), &"no".into()));
    let [yes, no] = ["yes", "no"].map(|label| json[0]["probabilities"][label].as_f64().unwrap());
    assert!((yes + no - 1.0).abs() < 1e-6 && yes > no, "{json:?}");

    let dir = RunDir::new();
    let job = train("texts.toml", &dir, 200).set("task.label", "score").set("task.regression", true);
    let job = job.set("task.dropout", 0.0).set("valid.every", "200 updates");
    job.set("checkpoint.best", "pearson").succeed();
    let correlations = |event| match event {
        Event::Valid { metrics, .. } => Some((metrics["pearson"], metrics["spearman"])),
        _ => None,
    };
    let found: Vec<(f64, f64)> = dir.events().into_iter().filter_map(correlations).collect();
    assert!(found.len() == 1 && found[0].0 > 0.95 && found[0].1 > 0.9, "{found:?}");
    // Ranks are compared over all samples, wherever they were computed.
    let eval = |ranks| {
        let job = Job::new(["eval"]).arg(dir.path()).arg("--json").ranks(ranks);
        serde_json::from_str::<serde_json::Value>(&job.succeed()).unwrap()
    };
    let [one, three] = [1, 3].map(eval);
    assert_eq!(one["spearman"], three["spearman"]);
    assert_eq!(one["spearman"].as_f64().unwrap(), found[0].1);
    let numbers: Vec<f64> = predicted(&dir, "dev.tsv", &[])[1..].iter().map(|line| line.parse().unwrap()).collect();
    assert!(numbers.len() == 60 && numbers.iter().all(|number| (-0.5..2.0).contains(number)), "{numbers:?}");
}

#[test]
fn any_mix_of_workers_fine_tunes_like_one() {
    const UPDATES: u64 = 30;
    for name in ["tokens.toml", "texts.toml"] {
        let dir = RunDir::new();
        train(name, &dir, UPDATES).succeed();
        let reference = Reference::of(dir, UPDATES);
        let dir = RunDir::new();
        train(name, &dir, UPDATES).weights(&[7, 2, 1]).succeed();
        reference.assert_losses(&dir, UPDATES, name);
    }
}

#[test]
fn wrong_files_are_refused_with_their_lines() {
    let dir = RunDir::new();
    let file = |name: &str, text: &str| {
        fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).display().to_string()
    };
    let refused = |key: &str, path: &str, expected: &[&str]| {
        let ended = train("tokens.toml", &dir, 1).set(key, path).run();
        assert_eq!(codes(&ended), [Some(2)], "{ended:#?}");
        assert!(expected.iter().all(|text| ended[0].stderr.contains(text)), "{expected:?}: {}", ended[0].stderr);
    };
    refused("task.valid", &file("unseen.conll", "anna\tB-person\nrome\tB-river\n"), &["unseen.conll", "2", "B-river"]);
    refused("task.train", &file("columns.conll", "anna\tB-person\nrome\n"), &["columns.conll", "2"]);
    refused("task.train", &file("empty.conll", "\n\n"), &["empty.conll"]);
    let ended = train("texts.toml", &dir, 1).set("task.text", "title").run();
    assert!(codes(&ended) == [Some(2)] && ended[0].stderr.contains("title"), "{ended:#?}");

    // A sentence of 5,000 words is split into windows, and no label is lost.
    let long = format!("{}anna\tB-person\n\n{}", "the\tO\n".repeat(5000), sentences(5, 20));
    let ended = train("tokens.toml", &dir, 1).set("task.train", file("long.conll", &long)).run();
    assert_eq!(codes(&ended), [Some(0)], "{ended:#?}");
    assert!(ended[0].stderr.contains("1 sentences split into windows"), "{}", ended[0].stderr);
}
