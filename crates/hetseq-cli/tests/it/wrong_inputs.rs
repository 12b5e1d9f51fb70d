//! What a new user gets wrong in the first hour, and the message for it, as snapshots: configs, data,
//! inputs of `hetseq prep`, starts that are refused before anything is measured, and warnings. After
//! an intended change, set `INSTA_UPDATE=always`, run the tests `wrong_inputs::`, and look at
//! `git diff`.

use std::path::{Path, PathBuf};

use fs_err as fs;
use tempfile::TempDir;

use crate::cluster::{Ended, Job, MNIST};
use crate::data::{digits, scratch};
use crate::texts::{assert_text, masked};

const LATEST_HDF5: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hetseq-data/tests/fixtures/latest_training.hdf5");

/// A directory of one test, from which its commands run, and the messages so far.
struct Messages {
    dir: TempDir,
    text: String,
}

impl Messages {
    /// A directory with `configs/mnist.toml`, whose data are the drawn digits.
    fn new() -> Self {
        let messages = Messages { dir: TempDir::new_in(scratch()).unwrap(), text: String::new() };
        let config = fs::read_to_string(MNIST).unwrap();
        let config = config.replace("data/mnist", &digits().display().to_string());
        messages.write("configs/mnist.toml", config.replace("[run]", "[run]\ndevices = \"cpu:1\""));
        messages
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// `hetseq` with these words, in the directory.
    fn job(&self, line: &str) -> Job {
        Job::new(line.split(' ')).in_dir(self.dir.path())
    }

    fn train(&self) -> Job {
        self.job("train configs/mnist.toml --set run.dir=run")
    }

    fn redacted(&self, text: &str) -> String {
        let text: String = text.lines().map(|line| without_time(line).to_owned() + "\n").collect();
        text.replace(&digits().display().to_string(), "DIGITS").replace(&self.dir.path().display().to_string(), "DIR")
    }

    /// Runs a command that must fail, without training and without measuring.
    fn refused(&mut self, title: &str, job: &Job) {
        let ended = job.run().remove(0);
        assert!(!ended.stderr.contains("measuring") && !ended.stderr.contains("parameters,"), "{ended:#?}");
        assert_eq!(ended.stdout, "", "{ended:#?}");
        self.add(title, &ended);
    }

    /// Runs a training that must succeed, and keeps its warnings, without numbers.
    fn warned(&mut self, title: &str, job: &Job) {
        let ended = job.clone().set("batch.probe_s", 0).run().remove(0);
        assert_eq!(ended.code(), Some(0), "{ended:#?}");
        let is_warning = |line: &&str| line.contains("warning:");
        let lines: Vec<&str> = ended.stderr.lines().map(without_time).filter(is_warning).collect();
        let mut stderr = masked(&lines.join("\n"), self.dir.path()) + "\n";
        // How far a loss rises depends on the machine.
        if let Some((before, after)) = stderr.split_once("risen from ") {
            let after = after.split_once(": ").map_or(after, |(_, after)| after);
            stderr = format!("{before}risen from LOSS to LOSS: {after}");
        }
        self.add(title, &Ended { stderr, ..ended });
    }

    fn add(&mut self, title: &str, ended: &Ended) {
        let code = ended.code().map_or_else(|| "a signal".to_owned(), |code| code.to_string());
        let stderr = self.redacted(&ended.stderr);
        self.text.push_str(&format!("## {title} (exit code {code})\n{stderr}"));
    }
}

/// A log line without the time at its beginning.
fn without_time(line: &str) -> &str {
    match line.split_once("Z ") {
        Some((time, rest)) if time.len() == 19 && time.starts_with("20") => rest,
        _ => line,
    }
}

#[test]
fn configs() {
    let mut seen = Messages::new();
    let config = fs::read_to_string(seen.path("configs/mnist.toml")).unwrap();
    seen.write("unquoted.toml", config.replace("task = \"images\"", "task = images"));
    seen.refused("a text without quotes", &seen.job("train unquoted.toml"));
    seen.write("rate.toml", config.replace("lr = 0.005", "learning_rate = 0.005"));
    seen.refused("the name of another program", &seen.job("train rate.toml"));
    seen.refused("a similar name of another program", &seen.train().set("optim.learnrate", 1));
    seen.refused("a key of another section", &seen.train().set("run.batch_size", 8));
    seen.write("section.toml", config.replace("[optim]", "[optimizer]"));
    seen.refused("a wrong section", &seen.job("train section.toml"));
    seen.refused("a similar task", &seen.train().set("run.task", "image"));
    seen.refused("the short name of a task", &seen.train().set("run.task", "bert"));
    seen.refused("an interval without a unit", &seen.train().set("valid.every", 5));
    seen.write("short.toml", "[run]\ntask = \"images\"\n");
    seen.refused("missing keys", &seen.job("train short.toml"));
    seen.write("empty.toml", "");
    seen.refused("an empty config", &seen.job("train empty.toml"));
    seen.refused("a config that is not there", &seen.job("train config/mnist.toml"));
    seen.refused("a directory that is no run", &seen.job("train configs"));
    let home = seen.path("home").display().to_string();
    seen.refused("a path with ~", &seen.train().set("task.data", "~/mnist").env_on(0, "HOME", &home));
    let run = seen.job("report --json ~/run").env_on(0, "HOME", &home);
    seen.refused("an argument with ~", &run);
    assert_text("wrong configs", &seen.text);
}

/// What people write who are new to TOML.
#[test]
fn toml() {
    let mut seen = Messages::new();
    let config = fs::read_to_string(seen.path("configs/mnist.toml")).unwrap();
    for (title, old, new) in [
        ("a quote is missing", "task = \"images\"", "task = \"images"),
        ("typographic quotes", "task = \"images\"", "task = “images”"),
        ("a path of Windows", "dir = \"runs/mnist\"", "dir = \"C:\\runs\\mnist\""),
        ("a key twice", "seed = 1", "seed = 1\nseed = 2"),
        ("a section twice", "[optim]", "[run]"),
        ("a colon instead of =", "seed = 1", "seed: 1"),
        ("a section as in YAML", "[optim]", "optim:"),
        ("a truth value of Python", "seed = 1", "seed = True"),
        ("no value", "seed = 1", "seed = None"),
        ("a number without 0", "lr = 0.005", "lr = .005"),
        ("a decimal comma", "lr = 0.005", "lr = 0,005"),
        ("a bracket is missing", "clip_norm = 5.0", "betas = [0.9, 0.98"),
    ] {
        seen.write("wrong.toml", config.replace(old, new));
        seen.refused(title, &seen.job("train wrong.toml"));
    }
    seen.write("wrong.toml", "{\"run\": {\"task\": \"images\"}}");
    seen.refused("JSON", &seen.job("train wrong.toml"));
    seen.write("wrong.toml", b"\xff\xfe[\0r\0");
    seen.refused("UTF-16", &seen.job("train wrong.toml"));
    seen.refused("a truth value of Python with --set", &seen.train().set("comm.encrypt", "True"));
    seen.refused("a range with --set", &seen.train().set("comm.ports", "29500-29510"));
    seen.refused("--set without a value", &seen.train().arg("--set").arg("optim.lr"));
    seen.refused("--set without a section", &seen.train().arg("--set").arg("lr=0.1"));
    assert_text("wrong TOML", &seen.text);
}

/// Wrong ranks, addresses and secrets.
#[test]
fn ranks() {
    let mut seen = Messages::new();
    let rank = |variables: &[(&str, &str)]| {
        variables.iter().fold(seen.train(), |job, (name, value)| job.env_on(0, name, value))
    };
    let address = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29999")];
    let jobs = [
        ("ranks that begin with 1", rank(&[("RANK", "2"), ("WORLD_SIZE", "2"), address[0], address[1]])),
        ("a rank that is no number", rank(&[("RANK", "one"), ("WORLD_SIZE", "2"), address[0], address[1]])),
        ("no ranks", rank(&[("RANK", "0"), ("WORLD_SIZE", "0"), address[0], address[1]])),
        ("WORLD_SIZE alone", rank(&[("WORLD_SIZE", "2")])),
        ("no port", rank(&[("RANK", "0"), ("WORLD_SIZE", "2"), address[0]])),
        ("a port that is too large", rank(&[("RANK", "0"), ("WORLD_SIZE", "2"), address[0], ("MASTER_PORT", "70000")])),
        ("an empty secret", rank(&[("HETSEQ_SECRET", "")])),
    ];
    for (title, job) in jobs {
        seen.refused(title, &job);
    }
    for (title, flags) in [
        ("an address without tcp://", "--distributed-init-method 127.0.0.1:29400 --distributed-world-size 2"),
        ("an address without a port", "--distributed-init-method tcp://127.0.0.1 --distributed-world-size 2"),
        ("a relative directory", "--distributed-init-method file://rendezvous --distributed-world-size 2"),
        ("a directory without the number of ranks", "--distributed-init-method file:///tmp/rendezvous"),
        ("a number of ranks without an address", "--distributed-world-size 2"),
    ] {
        let job = flags.split(' ').fold(seen.train(), Job::arg);
        seen.refused(title, &job);
    }
    assert_text("wrong ranks", &seen.text);
}

/// Commands besides `train`, with paths that are not what they expect.
#[test]
fn paths() {
    let mut seen = Messages::new();
    fs::create_dir(seen.path("mnist")).unwrap();
    for name in ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"] {
        fs::copy(digits().join(name), seen.path("mnist").join(name)).unwrap();
    }
    seen.refused("digits over other images", &seen.job("prep digits --out mnist --train 20 --test 10"));
    seen.refused("text that is not there", &seen.job("prep bert texts/*.txt --out text"));
    seen.write("empty.txt", "");
    let ended = seen.job("prep bert empty.txt --out text").run().remove(0);
    let stderr = ended.stderr.lines().last().unwrap_or_default().to_owned() + "\n";
    seen.add("empty text", &Ended { stderr, ..ended });
    seen.refused("a report of a run that has not begun", &seen.job("report configs/mnist.toml"));
    seen.refused("a checkpoint of a run that has not begun", &seen.job("eval configs/mnist.toml --set run.dir=none"));
    seen.train().set("run.max_updates", 1).set("batch.probe_s", 0).set("valid.every", "never").succeed();
    seen.refused("an export over other files", &seen.job("export run --out mnist"));
    let predict = seen.job("predict run --input nowhere.png").run().remove(0);
    seen.add("an image that is not there", &predict);
    seen.write("one.txt", "1\n");
    seen.write("two.txt", "1\n2\n");
    seen.refused("texts of different length", &seen.job("score one.txt two.txt"));
    assert_text("wrong paths", &seen.text);
}

/// `hetseq prep digits` a second time changes nothing; `report` takes a config, too.
#[test]
fn commands_may_be_repeated() {
    let seen = Messages::new();
    for _ in 0..2 {
        seen.job("prep digits --out digits --train 20 --test 10").succeed();
    }
    let train = seen.job("train configs/mnist.toml --set run.max_updates=2").set("batch.probe_s", 0);
    train.succeed();
    let ended = seen.job("report configs/mnist.toml").run().remove(0);
    assert_eq!(ended.code(), Some(0), "{ended:#?}");
}

/// Prepares a little text for BERT in `text`, and pairs of lines in `pairs`.
fn prepare(seen: &Messages) {
    let lines: String = (0..400).map(|n| format!("the ship {} sailed {} miles .\n", n % 7, n % 11)).collect();
    seen.write("lines.txt", lines.replace("0 miles .\n", "0 miles .\n\n"));
    seen.write("source.txt", &lines);
    seen.write("target.txt", lines.to_uppercase());
    seen.job("prep bert lines.txt --output text --vocab-size 120").succeed();
    seen.job("prep translate --source source.txt --target target.txt --out pairs --vocab-size 100").succeed();
    let run = |task: &str, data: &str| {
        format!(
            "[run]\ntask = \"{task}\"\nmax_updates = 1\ndevices = \"cpu:1\"\n[task]\ndata = \"{data}\"\nmodel = \"tiny\"\n\
             [batch]\nglobal = 8\n[optim]\nname = \"adam\"\nlr = 0.001\n"
        )
    };
    for (name, task, data) in [
        ("bert.toml", "bert-pretrain", "text"),
        ("bert-on-pairs.toml", "bert-pretrain", "pairs"),
        ("translation-on-text.toml", "translation", "text"),
    ] {
        seen.write(name, run(task, data));
    }
}

#[test]
fn data() {
    let mut seen = Messages::new();
    prepare(&seen);
    seen.refused("BERT on data for translation", &seen.job("train bert-on-pairs.toml"));
    seen.refused("translation on data for BERT", &seen.job("train translation-on-text.toml"));
    seen.refused("images on data for BERT", &seen.train().set("task.data", "text"));
    let images = digits().display().to_string();
    seen.refused("verifying images", &seen.job("prep verify").arg(images));
    fs::create_dir(seen.path("shards")).unwrap();
    fs::copy(LATEST_HDF5, seen.path("shards/latest_training.hdf5")).unwrap();
    seen.refused("shards in a newer HDF5 format", &seen.job("prep verify shards"));
    let config = fs::read_to_string(seen.path("bert.toml")).unwrap();
    seen.write("init.toml", config.replace("model = \"tiny\"", "init = \"bert-base-uncased\""));
    seen.refused("weights by their name on the Hub", &seen.job("train init.toml"));
    // The model is defined, so only the start of a new run needs the weights.
    let named = "init = \"sentence-transformers/all-MiniLM-L6-v2\"\nmodel = \"tiny\"";
    seen.write("named.toml", config.replace("model = \"tiny\"", named));
    seen.refused("weights of an organization", &seen.job("train named.toml"));
    seen.job("train bert.toml --set batch.probe_s=0 --set run.dir=bert-run").succeed();
    seen.refused("generating with BERT", &seen.job("generate bert-run --input source.txt"));
    assert_text("wrong data", &seen.text);
}

#[test]
fn inputs_of_prep() {
    let mut seen = Messages::new();
    for (title, name, content) in [
        ("a table", "reviews.csv", &b"id,text\n1,some words\n"[..]),
        ("an archive", "text.zip", b"PK\x03\x04...."),
        ("text in Latin-1", "latin.txt", b"one line\nsch\xf6n\n"),
        ("text in UTF-16", "wide.txt", b"\xff\xfew\0o\0"),
        ("an unknown binary file", "data.bin", b"ab\0\x01\x02"),
        ("another field", "other.jsonl", b"{\"id\": 1, \"body\": \"words\"}\n"),
        ("a JSON array", "list.json", b"[{\"text\": \"words\"}]"),
        ("shards", "shard.hdf5", b"\x89HDF\r\n\x1a\n"),
    ] {
        seen.write(name, content);
        let ended = seen.job(&format!("prep bert {name} --output out-{name} --vocab-size 120")).run().remove(0);
        // The names of the steps come first.
        let stderr =
            ended.stderr.lines().filter(|line| line.starts_with("error:")).collect::<Vec<_>>().join("\n") + "\n";
        seen.add(title, &Ended { stderr, ..ended });
    }
    assert_text("wrong inputs of prep", &seen.text);
}

/// All of these are known before the devices are measured, which takes up to 20 s.
#[test]
fn starts_are_refused_before_anything_is_measured() {
    let mut seen = Messages::new();
    seen.write("file", "");
    seen.refused(
        "a run directory that cannot be written",
        &seen.job("train configs/mnist.toml --set run.dir=file/run"),
    );
    seen.refused("no such checkpoint", &seen.train().arg("--resume").arg("nope"));
    let ended = seen.train().set("run.devices", "cpu:900-900").run().remove(0);
    let before_cores = ended.stderr.split("it may use").next().unwrap().to_owned() + "it may use CORES\n";
    seen.add("cores that do not exist", &Ended { stderr: before_cores, ..ended });
    seen.refused("overrides without a checkpoint", &seen.train().arg("--optimizer-overrides").arg("lr=0.1"));

    let first = seen.train().set("run.max_updates", 1).set("batch.probe_s", 0).set("valid.every", "never");
    first.succeed();
    let resumed = seen.train().set("run.max_updates", 2);
    seen.job("prep digits more --train 100 --test 20").succeed();
    seen.refused("other data on resume", &resumed.clone().set("task.data", "more"));
    seen.refused("another model on resume", &resumed.clone().set("task.model", "resnet18"));
    seen.refused("another optimizer on resume", &resumed.clone().set("optim.name", "sgd"));
    seen.refused("another task on resume", &resume_as_bert(&seen));
    assert_text("refused before measuring", &seen.text);
}

/// Another task in the directory of the run.
fn resume_as_bert(seen: &Messages) -> Job {
    prepare(seen);
    seen.job("train bert.toml --set run.dir=run")
}

#[test]
fn warnings() {
    let mut seen = Messages::new();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let one = |seen: &Messages, dir: &str| {
        let job = seen.job("train configs/mnist.toml").set("run.dir", dir).set("run.max_updates", 1);
        job.set("valid.every", "never").set("checkpoint.every", "never")
    };
    seen.warned("more devices than cores", &one(&seen, "a").set("run.devices", format!("cpu:{}", 2 * cores)));
    seen.warned("a batch larger than the data", &one(&seen, "b").set("batch.global", 5000));
    seen.warned("zero updates", &one(&seen, "c").set("run.max_updates", 0));
    let slurm = one(&seen, "d").env_on(0, "SLURM_NTASKS", "4").env_on(0, "SLURM_JOB_ID", "17");
    seen.warned("Slurm without srun", &slurm);
    seen.warned("a loss that rises", &diverging(&one(&seen, "e")));
    assert_text("warnings", &seen.text);
}

/// A learning rate that is far too large.
fn diverging(job: &Job) -> Job {
    let job = job.clone().set("run.max_updates", 20).set("optim.name", "sgd").set("optim.lr", 2);
    job.set("optim.schedule", "constant").set("optim.clip_norm", "1e9")
}

/// A run that can start is not refused: the checks are those of `starts_are_refused_...`.
#[test]
fn a_right_start_passes_all_checks() {
    let seen = Messages::new();
    let job = seen.train().set("run.max_updates", 2).set("batch.probe_s", 0);
    job.succeed();
    let resumed = seen.train().set("run.max_updates", 3).set("batch.probe_s", 0).run().remove(0);
    assert!(resumed.code() == Some(0) && !resumed.stderr.contains("WARN"), "{resumed:#?}");
    assert!(Path::new(&seen.path("run/checkpoints/step-3")).exists());
}
