//! BERT pre-training, from text to a Hugging Face directory: it learns, any mix of workers computes
//! what one device computes, other programs can load checkpoints, and settings that do not fit
//! together are refused.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fs_err as fs;
use hetseq_random::Key;
use safetensors::SafeTensors;

use crate::cluster::{Ended, Job};
use crate::data::scratch;
use crate::reference::Reference;
use crate::run_dir::RunDir;

const TOPICS: u32 = 16;
const WORDS_OF_TOPIC: u32 = 8;

/// Every document uses only the words of its topic. From the other words of a sample, a model can
/// infer the eight possible words for a masked one, and whether two segments belong together.
fn text(seed: u64) -> String {
    let key = Key::root(seed);
    let mut text = String::new();
    for document in 0..160 {
        let key = key.index(document);
        let topic = document as u32 % TOPICS;
        for sentence in 0..24 {
            for word in 0..10 {
                let _ = write!(
                    text,
                    "{} ",
                    word_of(topic, key.below(sentence * 10 + word, u64::from(WORDS_OF_TOPIC)) as u32)
                );
            }
            text.push_str(".\n");
        }
        text.push('\n');
    }
    text
}

fn word_of(topic: u32, word: u32) -> String {
    let letter = |n: u32| char::from(b'a' + n as u8);
    format!("{}o{}a", letter(topic), letter(word))
}

/// A directory with text, a vocabulary, and the output of `hetseq prep bert` in `compact` and
/// `hdf5`.
fn corpus() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = scratch().join("topics");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("text.txt"), text(1)).unwrap();
        let words = (0..TOPICS).flat_map(|topic| (0..WORDS_OF_TOPIC).map(move |word| word_of(topic, word)));
        let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."].map(str::to_owned);
        let vocabulary: Vec<String> = special.into_iter().chain(words).collect();
        fs::write(dir.join("vocab.txt"), vocabulary.join("\n")).unwrap();
        for (format, more) in [("compact", &[][..]), ("hdf5", &["--max-seq-length", "48"])] {
            let job = Job::new(["prep", "bert"]).arg(dir.join("text.txt")).arg("-o").arg(dir.join(format));
            let job = job.arg("--vocab").arg(dir.join("vocab.txt")).arg("--format").arg(format);
            let job = job.arg("--valid-fraction").arg("0.1").arg("--sentences").arg("lines");
            more.iter().fold(job, |job, arg| job.arg(arg)).succeed();
        }
        fs::write(dir.join("config.json"), CONFIG).unwrap();
        fs::write(dir.join("run.toml"), RUN).unwrap();
        dir
    })
}

const CONFIG: &str = r#"{"model_type": "bert", "vocab_size": 134, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64}"#;

const RUN: &str = r#"
[run]
task = "bert-pretrain"
devices = "cpu:1"

[task]
data = "compact"
config = "config.json"
max_seq_length = 48

[batch]
global = 20

[optim]
name = "adamw"
lr = 3e-3
weight_decay = 0.01

[valid]
every = "never"
"#;

/// `hetseq train` in the directory of the corpus, with one device per rank.
pub(crate) fn train(dir: &RunDir, updates: u64) -> Job {
    Job::train("run.toml", corpus(), dir, updates)
}

#[test]
fn it_learns_more_than_word_frequencies() {
    let checked = Job::new(["prep", "verify", "compact", "--json"]).in_dir(corpus()).succeed();
    let checked: serde_json::Value = serde_json::from_str(&checked).unwrap();
    let frequencies = checked["train"]["masked_entropy"].as_f64().unwrap();
    // The words of a topic are equally frequent, and a full stop follows every ten words.
    assert!((3.0..4.9).contains(&frequencies), "{frequencies}");

    let dir = RunDir::new();
    let job = train(&dir, 300).set("run.devices", "cpu:2").set("valid.every", "100 updates");
    job.set("checkpoint.best", "perplexity").succeed();
    let last = |term: &str| dir.term(term).range(281..).map(|(_, loss)| loss).sum::<f64>() / 20.0;
    let (words, sentences) = (last("mlm"), last("nsp"));
    eprintln!("loss of masked words {words:.3}, of frequencies alone {frequencies:.3}; of sentences {sentences:.3}");
    assert!(words < frequencies - 1.0, "{words} against {frequencies}");
    // Guessing gives ln 2 = 0.69.
    assert!(sentences < 0.55, "{sentences}");

    // `eval` gives the scores of the validation, also on two ranks.
    let output = Job::new(["eval", "run.toml", "--json"]).in_dir(corpus()).ranks(2);
    let output = output.set("run.dir", dir.path().display()).set("run.max_updates", 1).succeed();
    let output: serde_json::Value = serde_json::from_str(&output).unwrap();
    let value = |name: &str| output[name].as_f64().unwrap();
    assert!((value("perplexity") - output["terms"]["mlm"].as_f64().unwrap().exp()).abs() < 1e-6, "{output}");
    assert!(value("masked_accuracy") > 0.1 && value("next_sentence_accuracy") > 0.7, "{output}");
}

#[test]
fn a_probe_is_not_reused_for_other_data_at_the_same_path() {
    let (dir, data) = (RunDir::new(), RunDir::new());
    for length in ["24", "48"] {
        fs::remove_dir_all(data.path()).unwrap();
        let job = Job::new(["prep", "bert"]).arg(corpus().join("text.txt")).arg("-o").arg(data.path());
        let job = job.arg("--vocab").arg(corpus().join("vocab.txt")).args(["--format", "hdf5", "--sentences", "lines"]);
        job.args(["--max-seq-length", length]).succeed();
        let job = train(&dir, 2).set("task.data", data.path().display()).args(["--resume", "never"]);
        let ended = job.run();
        let is_measured = ended[0].stderr.lines().any(|line| line.trim_end().ends_with(", measured"));
        assert!(ended[0].code() == Some(0) && is_measured, "{ended:#?}");
    }
}

const WEIGHTS: [u32; 3] = [7, 2, 1];
const UPDATES: u64 = 101;

#[test]
fn any_mix_of_workers_computes_what_one_device_computes() {
    let dir = RunDir::new();
    let traced = |dir: &RunDir, updates| {
        let job = train(dir, updates).set("debug.gradients", true).set("run.checksum_every", 1);
        job.set("checkpoint.every", "50 updates").set("checkpoint.keep", 10)
    };
    traced(&dir, UPDATES).succeed();
    let reference = Reference::of(dir, UPDATES);
    let three =
        |job: Job| job.weights(&WEIGHTS).set_on(1, "batch.max_tokens", "96").set_on(2, "task.recompute", "true");
    let whole = RunDir::new();
    three(traced(&whole, 100)).succeed();
    reference.assert_gradient(&whole, 1, "three ranks");
    reference.assert_losses(&whole, 100, "three ranks");
    for from in [50, 100] {
        let dir = RunDir::new();
        three(traced(&dir, from + 1)).arg("--resume").arg(reference.checkpoint(from)).succeed();
        reference.assert_gradient(&dir, from + 1, "three ranks");
    }
}

#[test]
fn a_checkpoint_is_a_hugging_face_directory_and_can_initialize_a_run() {
    let dir = RunDir::new();
    train(&dir, 6).succeed();
    let checkpoint = dir.checkpoint("step-6");
    let read = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(checkpoint.join(name)).unwrap()).unwrap()
    };
    let config = read("config.json");
    assert_eq!((&config["architectures"][0], &config["hidden_size"]), (&"BertForPreTraining".into(), &32.into()));
    assert_eq!(read("tokenizer_config.json")["tokenizer_class"], "BertTokenizer");
    assert_eq!(read("tokenizer.json")["model"]["type"], "WordPiece");

    // Exported without the trainer's files, then loaded by a run on shards that has no model
    // config.
    let exported = dir.path().join("exported");
    let output = Job::new(["export"]).arg(dir.path()).arg("--out").arg(&exported).succeed();
    assert_eq!(output.lines().count(), 5, "{output}");
    let next = RunDir::new();
    fs::write(next.path().join("none.toml"), RUN.replace("config = \"config.json\"\n", "")).unwrap();
    let job = Job::new(["train"]).arg(next.path().join("none.toml")).in_dir(corpus());
    let job = job.set("run.dir", next.path().join("run").display()).set("task.data", "hdf5");
    let job = job.set("task.init", exported.display()).set("optim.lr", 0).set("run.max_updates", 1);
    job.succeed();
    let weights = |path: PathBuf| -> BTreeMap<String, Vec<u8>> {
        let bytes = fs::read(path.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        file.tensors().into_iter().map(|(name, tensor)| (name, tensor.data().to_vec())).collect()
    };
    assert!(weights(next.path().join("run/checkpoints/step-1")) == weights(checkpoint));
}

#[test]
fn a_migrated_command_line_trains() {
    let dir = RunDir::new();
    let line = format!(
        "python3 train.py --task bert --data hdf5 --dict vocab.txt --config_file config.json --max_pred_length 20 \
         --max-sentences 32 --fast-stat-sync --max-update 3 --update-freq 4 --valid-subset test --num-workers 4 \
         --warmup-updates 10000 --total-num-update 1000000 --lr 0.0001 --weight-decay 0.01 --save-dir {} \
         --distributed-world-size 1",
        dir.path().join("run").display()
    );
    let config = dir.path().join("bert.toml");
    let output = Job::new(["migrate", "--out"]).arg(&config).arg(&line).in_dir(corpus()).succeed();
    assert!(!output.contains("will reject"), "{output}");
    Job::new(["train"]).arg(&config).in_dir(corpus()).set("run.devices", "cpu:1").succeed();
    assert!(dir.path().join("run/checkpoints/step-3/tokenizer.json").exists());
}

#[test]
fn samples_without_a_masked_word_contribute_nothing() {
    let dir = RunDir::new();
    // Every second document has no known words, and unknown words are never masked.
    let document =
        |at: u32| if at.is_multiple_of(2) { "aoaa aoba aoca .\n".repeat(8) } else { "xyz xyz xyz\n".repeat(8) };
    let text: String = (0..40).map(|at| document(at) + "\n").collect();
    fs::write(dir.path().join("text.txt"), text).unwrap();
    for (format, more) in [("compact", &[][..]), ("hdf5", &["--max-seq-length", "48"])] {
        let data = dir.path().join(format);
        let job = Job::new(["prep", "bert"]).arg(dir.path().join("text.txt")).arg("-o").arg(&data).in_dir(corpus());
        let job = job.args(["--vocab", "vocab.txt", "--valid-fraction", "0.3", "--sentences", "lines"]);
        job.args(["--format", format]).args(more).succeed();
        let run = RunDir::new();
        // Micro-batches of one sample, in training as in validation.
        let job = train(&run, 12).set("task.data", data.display()).set("task.next_sentence", false);
        job.set("batch.global", 1).set("valid.every", "6 updates").succeed();
        let losses = run.losses();
        let without = losses.values().filter(|&&loss| loss == 0.0).count();
        assert!(losses.len() == 12 && (1..12).contains(&without), "{losses:?}");
    }
}

#[test]
fn damaged_shards_are_refused_alone_and_in_a_group() {
    let dir = RunDir::new();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    for entry in fs::read_dir(corpus().join("compact")).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&entry, data.join(entry.file_name().unwrap())).unwrap();
    }
    let shard = data.join("train-00000.tokens");
    let mut bytes = fs::read(&shard).unwrap();
    // Changes a token to another valid one. Only the checksum can reveal that.
    bytes[200] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let job = train(&dir, 2).set("comm.join_s", 3).set("comm.silence_s", 3);
    for job in
        [job.clone().set("task.data", data.display()), job.ranks(2).set_on(1, "task.data", &data.display().to_string())]
    {
        let ended = job.run();
        assert!(ended.iter().all(|rank| rank.code() != Some(0)), "{ended:#?}");
        let refused = ended.last().unwrap();
        assert_eq!(refused.code(), Some(2), "{refused:#?}");
        for part in ["train-00000.tokens: its content does not match the checksum", "hetseq prep verify"] {
            assert!(refused.stderr.contains(part), "{refused:#?}");
        }
        assert!(!dir.path().join("checkpoints").exists() || dir.checkpoints().is_empty());
    }
    let verified = Job::new(["prep", "verify"]).arg(&data).run().remove(0);
    assert!(verified.code() != Some(0) && verified.stderr.contains("train-00000.tokens"), "{verified:#?}");
}

#[test]
fn settings_that_do_not_fit_together_are_refused() {
    let spoilt = scratch().join("spoilt");
    fs::create_dir_all(&spoilt).unwrap();
    let write = |name: &str, from: &str, to: &str| {
        assert!(CONFIG.contains(from));
        fs::write(spoilt.join(name), CONFIG.replace(from, to)).unwrap();
        spoilt.join(name).display().to_string()
    };
    let small = write("small.json", "134", "100");
    let odd = write("odd.json", "\"hidden_size\": 32", "\"hidden_size\": 33");
    let short = write("short.json", "64}", "40}");
    let other = write("other.json", "\"bert\"", "\"gpt2\"");
    let trained = RunDir::new();
    train(&trained, 1).succeed();
    let wide = write("wide.json", "\"hidden_size\": 32", "\"hidden_size\": 64");
    let init = trained.checkpoint("step-1").display().to_string();

    let foreign = fs::read_to_string(corpus().join("vocab.txt")).unwrap().replace("aoaa", "zoza");
    fs::write(spoilt.join("vocab.txt"), foreign).unwrap();
    let foreign = spoilt.join("vocab.txt").display().to_string();

    let truncated = spoilt.join("truncated");
    fs::create_dir_all(&truncated).unwrap();
    let shard = fs::read_dir(corpus().join("hdf5")).unwrap().map(|entry| entry.unwrap().path());
    let shard = shard.into_iter().find(|path| path.to_string_lossy().contains("train")).unwrap();
    let bytes = fs::read(&shard).unwrap();
    fs::write(truncated.join("train_0.hdf5"), &bytes[..bytes.len() / 2]).unwrap();
    let truncated = truncated.display().to_string();

    for (sets, parts) in [
        (&[("task.config", small.as_str())][..], &["small.json", "vocab_size = 100", "134 tokens"][..]),
        (&[("task.config", &small), ("task.data", "hdf5")], &["hdf5", "100"]),
        (&[("task.config", &odd)], &["odd.json", "hidden_size = 33", "divisible by num_attention_heads"]),
        (&[("task.config", &short)], &["short.json", "max_position_embeddings = 40", "48 tokens"]),
        (&[("task.config", &other)], &["other.json", "model_type = gpt2"]),
        (&[("task.config", "nowhere.json")], &["nowhere.json"]),
        (&[("task.config", &wide), ("task.init", &init)], &["LayerNorm.bias is [32]", "expects [64]"]),
        (&[("task.init", "nowhere")], &["nowhere"]),
        (&[("task.data", "nowhere")], &["nowhere"]),
        (&[("task.data", &truncated)], &["train_0.hdf5"]),
        (&[("task.tokenizer", &foreign)], &["task.tokenizer differs from the tokenizer"]),
        (&[("task.model", "tiny")], &["task.model and task.config both"]),
        (&[("task.dropout", "1.5")], &["task.dropout = 1.5"]),
        (&[("task.max_seq_length", "4")], &["max_seq_length", "4 is not between"]),
    ] {
        let dir = RunDir::new();
        let job = sets.iter().fold(train(&dir, 1), |job, (key, value)| job.set(key, value));
        let Ended { status, stderr, .. } = job.run().remove(0);
        assert_eq!(status.code(), Some(2), "{sets:?}: {stderr}");
        for part in parts {
            assert!(stderr.contains(part), "{sets:?}: {stderr}");
        }
        assert!(!dir.path().join("checkpoints").exists() || dir.checkpoints().is_empty(), "{sets:?}");
    }
}
