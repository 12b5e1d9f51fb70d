//! Generated training data for `hetseq selftest`, and a small config of each built-in task on it.
//! The parent process writes the files, the processes that test devices read them.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, bail};
use fs_err as fs;
use hetseq_data::prep::PrepOutcome;
use hetseq_data::prep::bert::{PrepFormat, PrepSettings, VocabularySource};
use hetseq_data::prep::translate::{SubwordModel, SubwordSource, TranslateSettings};
use hetseq_data::prep::{bert, translate};
use hetseq_data::source::text::{DEFAULT_FIELD, SentenceStyle};
use hetseq_random::Key;
use hetseq_train::ConfigSource;

use crate::prep::{Quiet, write_digits};

/// A built-in model with data.
pub(super) struct TestModel {
    /// The task, and the network if there is a choice.
    pub(super) name: &'static str,
    pub(super) source: ConfigSource,
    /// It has operations whose gradient jumps (ReLU, maximum). A rounding difference may select
    /// another branch, so losses agree less well after some updates.
    pub(super) has_kinks: bool,
}

/// Samples per update of all models.
pub(super) const BATCH: usize = 8;

/// The names of [`models`], in their order.
pub(super) const NAMES: [&str; 7] = [
    "images (convnet)",
    "images (resnet18)",
    "bert-pretrain",
    "token-classification",
    "sequence-classification",
    "entity-linking",
    "translation",
];

/// The models of all built-in tasks, on the data that [`generate`] wrote to `dir`.
pub(super) fn models(dir: &Path) -> Vec<TestModel> {
    let path = |name: &str| format!("{:?}", dir.join(name).display().to_string());
    let bert = format!(
        "config = {}\ntokenizer = {}\nmax_seq_length = 32\ndropout = 0.1\n",
        path("config.json"),
        path("vocab.txt")
    );
    let tables = [
        format!("data = {}\ndropout = 0.25\n", path("digits")),
        format!("data = {}\nmodel = \"resnet18\"\nwidth = 8\n", path("digits")),
        format!("data = {}\nconfig = {}\nmax_seq_length = 32\n", path("pretrain"), path("config.json")),
        format!("train = {}\n{bert}", path("tags.conll")),
        format!("train = {}\ntext = \"text\"\nlabel = \"label\"\n{bert}", path("texts.tsv")),
        format!("train = {}\nentities = {}\n{bert}", path("mentions.conll"), path("entities.txt")),
        format!("data = {}\nmodel = \"tiny\"\nwidth = 32\nheads = 2\nbleu = false\n", path("translate")),
    ];
    let model = |(name, table): (&'static str, String)| {
        let task = name.split(' ').next().unwrap_or(name);
        let text = format!(
            "[run]\ntask = {task:?}\nmax_updates = 1\n[task]\n{table}[batch]\nglobal = {BATCH}\n\
             [optim]\nname = \"adam\"\nlr = 0.001\n"
        );
        TestModel {
            name,
            source: ConfigSource::from_text("selftest", text, &[]),
            has_kinks: name.contains("resnet") || task == "translation",
        }
    };
    NAMES.into_iter().zip(tables).map(model).collect()
}

const PEOPLE: [&str; 6] = ["ada", "ben", "cleo", "dan", "eva", "finn"];
const VERBS: [&str; 4] = ["sees", "calls", "knows", "helps"];
const THINGS: [&str; 8] = ["car", "dog", "hat", "key", "lamp", "map", "oar", "pen"];
const ENTITY_WIDTH: u64 = 8;

/// Writes the data of all models to `dir`.
pub(super) fn generate(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir)?;
    write_digits(&dir.join("digits"), 64, 8, 1)?;
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "the"];
    let words: Vec<&str> = special.iter().chain(&PEOPLE).chain(&VERBS).chain(&THINGS).copied().collect();
    fs::write(dir.join("vocab.txt"), words.join("\n"))?;
    fs::write(
        dir.join("config.json"),
        format!(
            "{{\"model_type\": \"bert\", \"vocab_size\": {}, \"hidden_size\": 32, \"num_hidden_layers\": 2, \
             \"num_attention_heads\": 2, \"intermediate_size\": 64, \"max_position_embeddings\": 64}}",
            words.len()
        ),
    )?;
    let texts = Texts::write(200);
    for (name, text) in [
        ("text.txt", &texts.plain),
        ("tags.conll", &texts.tags),
        ("mentions.conll", &texts.mentions),
        ("texts.tsv", &texts.labelled),
        ("source.txt", &texts.plain_lines),
        ("target.txt", &texts.translated),
    ] {
        fs::write(dir.join(name), text)?;
    }
    let mut entities = format!("{} {ENTITY_WIDTH}\n", PEOPLE.len());
    for (at, name) in PEOPLE.iter().enumerate() {
        let key = Key::root(4).index(at as u64);
        let values: Vec<String> = (0..ENTITY_WIDTH).map(|i| format!("{:.4}", key.normal(i))).collect();
        writeln!(entities, "{name}_entity {}", values.join(" "))?;
    }
    fs::write(dir.join("entities.txt"), entities)?;
    prepare(dir)
}

fn prepare(dir: &Path) -> anyhow::Result<()> {
    let settings = PrepSettings {
        inputs: vec![dir.join("text.txt")],
        valid: Vec::new(),
        valid_fraction: 0.0,
        output: dir.join("pretrain"),
        vocabulary: VocabularySource::Vocabulary { path: dir.join("vocab.txt"), cased: false },
        field: DEFAULT_FIELD.to_owned(),
        sentences: Some(SentenceStyle::Lines),
        format: PrepFormat::Compact,
        shard_mib: None,
        seed: 1,
    };
    let is_finished =
        matches!(bert::prepare(&settings, &Quiet).context("preparing text for BERT")?, PrepOutcome::Finished { .. });
    let settings = TranslateSettings {
        source: vec![dir.join("source.txt")],
        target: vec![dir.join("target.txt")],
        valid_source: Vec::new(),
        valid_target: Vec::new(),
        output: dir.join("translate"),
        vocabulary: SubwordSource::Trained { size: 100, model: SubwordModel::Bpe, separate: false },
        languages: [None, None],
        min_length: 1,
        max_length: 64,
        max_ratio: 0.0,
        shard_mib: 1,
    };
    let outcome = translate::prepare(&settings, &Quiet).context("preparing text for translation")?;
    if !is_finished || !matches!(outcome, PrepOutcome::Finished { .. }) {
        bail!("preparing the data was stopped");
    }
    Ok(())
}

/// One text in the formats of all tasks.
#[derive(Default)]
struct Texts {
    /// A sentence per line, a blank line after each document.
    plain: String,
    plain_lines: String,
    translated: String,
    tags: String,
    mentions: String,
    labelled: String,
}

impl Texts {
    /// Sentences such as "ada helps the dog .".
    fn write(count: u64) -> Texts {
        let mut texts = Texts { labelled: "text\tlabel\n".to_owned(), ..Texts::default() };
        for sentence in 0..count {
            let key = Key::root(2).index(sentence);
            let pick = |at: u64, from: &[&'static str]| from[key.below(at, from.len() as u64) as usize];
            let (person, verb) = (pick(0, &PEOPLE), pick(1, &VERBS));
            // Of different lengths, so that there is padding.
            let things: Vec<&str> = (0..1 + key.below(2, 3)).map(|i| pick(3 + i, &THINGS)).collect();
            let line = format!("{person} {verb} the {}", things.join(" the "));
            texts.plain.push_str(&format!("{line} .\n"));
            if sentence % 10 == 9 {
                texts.plain.push('\n');
            }
            texts.plain_lines.push_str(&format!("{line}\n"));
            let reversed: Vec<String> = line.split(' ').rev().map(|word| format!("{word}o")).collect();
            texts.translated.push_str(&format!("{}\n", reversed.join(" ")));
            let label = if PEOPLE[..3].contains(&person) { "first" } else { "second" };
            texts.labelled.push_str(&format!("{line}\t{label}\n"));
            for (at, word) in line.split(' ').enumerate() {
                let is_person = at == 0;
                let tag = if is_person { "B-person" } else { "O" };
                texts.tags.push_str(&format!("{word}\t{tag}\n"));
                let (tag, entity) = if is_person { ("B", format!("{word}_entity")) } else { ("O", "-".to_owned()) };
                texts.mentions.push_str(&format!("{word}\t{tag}\t{entity}\n"));
            }
            texts.tags.push('\n');
            texts.mentions.push('\n');
        }
        texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetseq_train::Tasks;
    use hetseq_train::bench::TrialRequest;

    #[test]
    fn every_built_in_task_has_a_model_that_learns() {
        let dir = tempfile::tempdir().unwrap();
        generate(dir.path()).unwrap();
        let tasks = Tasks::builtin();
        let models = models(dir.path());
        for task in tasks.names().iter().filter(|name| !["synthetic-bert", "python"].contains(*name)) {
            assert!(models.iter().any(|model| model.name.split(' ').next() == Some(task)), "{task} has no model");
        }
        for TestModel { name, source, .. } in models {
            let request = TrialRequest { devices: "cpu:1".to_owned(), batch: BATCH, updates: 20, fault: None };
            let losses = tasks.trial(&source, &request).unwrap().losses;
            assert!(losses[19] < 0.98 * losses[0], "{name}: {losses:?}");
        }
    }
}
