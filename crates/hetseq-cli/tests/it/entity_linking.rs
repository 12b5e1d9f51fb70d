//! Entity linking: mentions are found and linked by their context, any mix of workers computes what
//! one device computes, and mentions without a usable entity have no effect on the entity head.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fs_err as fs;
use hetseq_random::Key;

use crate::cluster::{Job, codes};
use crate::data::corpus_dir;
use crate::reference::Reference;
use crate::run_dir::RunDir;

const NAMES: [&str; 4] = ["anna", "bert", "carl", "dora"];
const WORDS: [&str; 7] = ["the", "old", "young", "sees", "sleeps", "smith", "it"];

/// Each name is two entities: an old and a young person.
fn entity(name: &str, is_old: bool) -> String {
    format!("{name}_{}", if is_old { "senior" } else { "junior" })
}

/// "old anna smith sees it": the word before a name says which of two entities it is. Every fourth
/// sentence has no mention, and every fifth mention has no entity of the dictionary.
fn documents(seed: u64, count: u64) -> String {
    let mut text = "-DOCSTART-\tO\t-\n\n".to_owned();
    for sentence in 0..count {
        let key = Key::root(seed).index(sentence);
        if sentence % 4 == 3 {
            text.push_str("it\tO\t-\nsleeps\tO\t-\n\n");
            continue;
        }
        let (name, is_old) = (NAMES[key.below(0, 4) as usize], key.below(1, 2) == 0);
        let entity = match key.below(2, 10) {
            0 => "--NME--".to_owned(),
            1 => "unheard_of".to_owned(),
            _ => entity(name, is_old),
        };
        let _ = writeln!(text, "the\tO\t-\n{}\tO\t-", if is_old { "old" } else { "young" });
        let _ = writeln!(text, "{name}\tB\t{entity}");
        if key.below(3, 2) == 0 {
            let _ = writeln!(text, "smith\tI\t{entity}");
        }
        text.push_str("sees\tO\t-\nit\tO\t-\n\n");
    }
    text
}

fn corpus() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = corpus_dir("entities", NAMES.iter().chain(&WORDS));
        let mut table = "8 6\n".to_owned();
        for (at, (name, is_old)) in NAMES.iter().flat_map(|name| [(name, true), (name, false)]).enumerate() {
            let values = (0..6).map(|d| format!("{:.4}", Key::root(7).index(at as u64).normal(d)));
            let _ = writeln!(table, "{} {}", entity(name, is_old), values.collect::<Vec<_>>().join(" "));
        }
        fs::write(dir.join("entities.txt"), table).unwrap();
        for (name, seed, count) in [("train", 1, 400), ("dev", 2, 80)] {
            fs::write(dir.join(format!("{name}.conll")), documents(seed, count)).unwrap();
        }
        let config = "[run]\ntask = \"entity-linking\"\ndevices = \"cpu:1\"\n\
                      [task]\ntrain = \"train.conll\"\nvalid = \"dev.conll\"\nentities = \"entities.txt\"\n\
                      tokenizer = \"vocab.txt\"\nmodel = \"tiny\"\ndropout = 0.1\n[batch]\nglobal = 16\n\
                      [optim]\nname = \"adamw\"\nlr = 1e-3\n[valid]\nevery = \"never\"\n";
        fs::write(dir.join("linking.toml"), config).unwrap();
        dir
    })
}

fn train(dir: &RunDir, updates: u64) -> Job {
    Job::train("linking.toml", corpus(), dir, updates)
}

#[test]
fn mentions_are_linked_by_their_context() {
    let dir = RunDir::new();
    let ended = train(&dir, 200).set("run.devices", "cpu:2").set("checkpoint.best", "linking_accuracy").run();
    assert_eq!(codes(&ended), [Some(0)], "{ended:#?}");
    assert!(ended[0].stderr.contains("1 entities are not in task.entities"), "{}", ended[0].stderr);
    let evaluated = |ranks| {
        let job = Job::new(["eval"]).arg(dir.path()).arg("--json").ranks(ranks);
        serde_json::from_str::<serde_json::Value>(&job.succeed()).unwrap()
    };
    let [one, three] = [1, 3].map(evaluated);
    for name in ["linking_accuracy", "mention_f1", "precision"] {
        let least = if name == "precision" { 0.8 } else { 0.95 };
        assert!(one[name].as_f64().unwrap() > least, "{one}");
        assert_eq!(one[name], three[name], "over several ranks as on one device");
    }
    // Mentions out of the dictionary cannot be found.
    assert!(one["recall"].as_f64().unwrap() < 0.95, "{one}");

    let input = dir.path().join("new.conll");
    fs::write(&input, "the\nyoung\ncarl\nsmith\nsees\n\nit\nsleeps\n").unwrap();
    let output = Job::new(["predict"]).arg(dir.path()).arg("--input").arg(&input).succeed();
    let expected =
        "the\tO\t-\nyoung\tO\t-\ncarl\tB\tcarl_junior\nsmith\tI\tcarl_junior\nsees\tO\t-\n\nit\tO\t-\nsleeps\tO\t-\n\n";
    assert_eq!(output, expected);
}

#[test]
fn any_mix_of_workers_links_like_one() {
    const UPDATES: u64 = 30;
    let dir = RunDir::new();
    train(&dir, UPDATES).succeed();
    let reference = Reference::of(dir, UPDATES);
    // Micro-batches of one sample: some have no mention to link.
    let dir = RunDir::new();
    train(&dir, UPDATES).weights(&[7, 2, 1]).set("batch.micro", 1).succeed();
    reference.assert_losses(&dir, UPDATES, "entity linking");
}

#[test]
fn an_update_without_a_mention_to_link_trains_the_other_head() {
    let dir = RunDir::new();
    let data = dir.path().join("unknown.conll");
    fs::write(&data, "anna\tB\tNIL\nsees\tO\t-\n\n".repeat(16)).unwrap();
    let labels = r#"["O", "B", "I"]"#;
    train(&dir, 3).set("task.train", data.display()).set("task.labels", labels).succeed();
    let (mentions, entities) = (dir.term("mentions"), dir.term("entities"));
    assert!(mentions[&3] < mentions[&1], "{mentions:?}");
    assert!(entities.values().all(|loss| *loss == 0.0), "{entities:?}");
}

#[test]
fn wrong_tables_and_columns_are_refused() {
    let dir = RunDir::new();
    let refused = |key: &str, name: &str, text: &str, expected: &[&str]| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        let ended = train(&dir, 1).set(key, path.display()).run();
        assert_eq!(codes(&ended), [Some(2)], "{ended:#?}");
        assert!(expected.iter().all(|text| ended[0].stderr.contains(text)), "{expected:?}: {}", ended[0].stderr);
    };
    refused("task.entities", "short.txt", "a 1 2 3\nb 1 2\n", &["short.txt", "2"]);
    refused("task.entities", "zero.txt", "a 1 2 3\nb 0 0 0\n", &["zero.txt", "`b`", "zero"]);
    refused("task.train", "two.conll", "anna\tB\tanna_senior\nsmith\tI\tanna_junior\n", &["two.conll", "anna_junior"]);
    refused("task.train", "columns.conll", "anna\tB\n", &["columns.conll"]);
}
