//! Class folders of PNG and JPEG files: any mix of workers computes what one device computes,
//! damaged files are reported and skipped or fatal, and invalid image data is refused.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fs_err as fs;
use hetseq_metrics::Event;
use tempfile::TempDir;

use crate::cluster::{Ended, Job};
use crate::data::scratch;
use crate::run_dir::RunDir;

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/imagefolder.toml");
const TRAIN_SAMPLES: u32 = 60;
const VALID_SAMPLES: u32 = 20;

/// Images drawn by `hetseq prep`, once per test process.
fn drawn() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = scratch().join("drawn");
        draw(&dir);
        dir
    })
}

fn draw(dir: &Path) {
    let (train, valid) = (TRAIN_SAMPLES.to_string(), VALID_SAMPLES.to_string());
    let output = Job::new(["prep", "image-folder", "--out"])
        .arg(dir)
        .arg("--train")
        .arg(train)
        .arg("--valid")
        .arg(valid)
        .succeed();
    assert!(output.contains("60 training and 20 validation images in class folders"), "{output}");
}

/// The shipped config on small images, with the small network. It is smooth, so rounding
/// differences stay small.
fn train(dir: &RunDir, data: &Path, updates: u64) -> Job {
    Job::new(["train", CONFIG])
        .set("run.dir", dir.path().display())
        .set("run.devices", "cpu:1")
        .set("run.max_updates", updates)
        .set("run.checksum_every", 1)
        .set("task.data", data.display())
        .set("task.model", "convnet")
        .set("task.image_size", 16)
        .set("batch.global", 12)
        .set("task.crop", "{ scale = [0.6, 1.0] }")
        .set("optim.name", "adam")
        .set("optim.lr", 0.003)
        .set("optim.schedule", "constant")
}

/// Trains on one rank and on three unequal ones. The losses and the first gradient must agree.
fn assert_exact(updates: u64, vary: impl Fn(Job) -> Job) -> [RunDir; 2] {
    let (one, three) = (RunDir::new(), RunDir::new());
    vary(train(&one, drawn(), updates).set("debug.gradients", true)).succeed();
    let job = train(&three, drawn(), updates).set("debug.gradients", true);
    vary(job.weights(&[3, 2, 1]).set("batch.micro", 4).set("run.loader_threads", 3)).succeed();
    let (expected, found) = (one.losses(), three.losses());
    assert!(expected.keys().copied().eq(1..=updates) && found.keys().eq(expected.keys()));
    let worst = found.iter().map(|(update, loss)| (loss / expected[update] - 1.0).abs()).fold(0.0, f64::max);
    eprintln!("losses of three ranks deviate by up to {worst:.1e}");
    assert!(worst <= 1e-5, "{worst:e}");
    let (mut difference, mut length) = (0.0, 0.0);
    let found = three.gradient(1);
    for (name, expected) in one.gradient(1) {
        for (found, expected) in found[&name].iter().zip(expected) {
            difference += f64::from(found - expected).powi(2);
            length += f64::from(expected).powi(2);
        }
    }
    let relative = (difference / length).sqrt();
    eprintln!("the first gradient of three ranks deviates by {relative:.1e}");
    assert!(relative <= 2e-6, "{relative:e}");
    [one, three]
}

#[test]
fn three_ranks_train_like_one() {
    const UPDATES: u64 = 20;
    let [one, three] = assert_exact(UPDATES, |job| job);
    let losses: Vec<f64> = one.losses().into_values().collect();
    let epoch = |losses: &[f64]| losses.iter().sum::<f64>() / 5.0;
    assert!(epoch(&losses[15..]) < 0.95 * epoch(&losses[..5]), "nothing was learned: {losses:?}");
    // Both have the same scores in the final validation.
    for (a, b) in scores(&one).iter().zip(&scores(&three)) {
        assert!((a - b).abs() <= 1e-5 * a.abs(), "{a} and {b}");
    }
}

/// Few updates and small steps: at the kink of a ReLU a rounding difference can select the other
/// branch.
#[test]
fn three_ranks_train_a_resnet_like_one() {
    let resnet = |job: Job| job.set("task.model", "resnet18").set("task.width", 8).set("optim.lr", 1e-6);
    assert_exact(4, resnet);
}

/// Loss, accuracy and top-5 accuracy.
fn scores(dir: &RunDir) -> [f64; 3] {
    let valid = |event| match event {
        Event::Valid { loss, metrics, samples, .. } => {
            assert_eq!(samples, u64::from(VALID_SAMPLES));
            Some([loss, metrics["accuracy"], metrics["top5_accuracy"]])
        }
        _ => None,
    };
    let scores = dir.events().into_iter().filter_map(valid).next_back().unwrap();
    assert!(scores[2] >= scores[1] && scores[2] <= 1.0, "{scores:?}");
    scores
}

#[test]
fn the_summary_shows_how_long_updates_waited_for_data() {
    let dir = RunDir::new();
    let ended = train(&dir, drawn(), 3).run().remove(0);
    assert_eq!(ended.code(), Some(0), "{ended:#?}");
    assert!(ended.stderr.contains("data wait   "), "{}", ended.stderr);
    let mut waits = 0.0;
    for event in dir.events() {
        match event {
            Event::Update { seconds, data_wait_s, .. } => {
                assert!((0.0..=seconds).contains(&data_wait_s), "{data_wait_s} of {seconds}");
                waits += data_wait_s;
            }
            Event::End { data_wait_s, skipped, .. } => {
                assert!((data_wait_s - waits).abs() < 1e-9 && waits > 0.0, "{data_wait_s} and {waits}");
                assert_eq!(skipped, 0);
            }
            _ => {}
        }
    }
}

/// Drawn images with a truncated JPEG among the training images and an invalid PNG among the
/// validation images.
fn damaged() -> (TempDir, [PathBuf; 2]) {
    let dir = TempDir::new_in(scratch()).unwrap();
    draw(dir.path());
    let jpeg = dir.path().join("train/3/000013.jpg");
    let bytes = fs::read(&jpeg).unwrap();
    fs::write(&jpeg, &bytes[..bytes.len() * 2 / 3]).unwrap();
    let png = dir.path().join("valid/4/000004.png");
    fs::write(&png, "no picture").unwrap();
    (dir, [jpeg, png])
}

#[test]
fn damaged_files_are_reported_once_and_skipped() {
    let (data, [jpeg, png]) = damaged();
    let mut losses = Vec::new();
    // Three epochs of five updates, on one rank and on two.
    for ranks in [1, 2] {
        let dir = RunDir::new();
        let job = train(&dir, data.path(), 15).set("valid.every", "1 epoch").ranks(ranks);
        let ended = job.run();
        assert!(ended.iter().all(|rank| rank.code() == Some(0)), "{ended:#?}");
        // There may be other warnings, for example about a device that is too slow to be useful.
        let mut warnings = dir.warnings();
        warnings.retain(|warning| warning.contains("sample"));
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        let expected = [(&jpeg, "is a truncated JPEG file"), (&png, "is not a readable image")];
        for (warning, (path, what)) in warnings.iter().zip(expected) {
            let begins = format!("a sample was skipped: {} {what}", path.display());
            assert!(warning.starts_with(&begins), "{warning}");
            // With several ranks the message names the rank: the copies of the others may be
            // intact.
            assert_eq!(warning.contains("(rank "), ranks > 1, "{warning}");
            assert_eq!(ended[0].stderr.matches(warning).count(), 1, "{}", ended[0].stderr);
        }
        assert!(ended[0].stderr.contains("skipped     2 samples that could not be read"), "{}", ended[0].stderr);
        match dir.events().pop() {
            Some(Event::End { skipped, .. }) => assert_eq!(skipped, 2),
            other => panic!("the last event is {other:?}"),
        }
        losses.push(dir.losses());
    }
    for (update, loss) in &losses[0] {
        assert!((losses[1][update] / loss - 1.0).abs() <= 1e-5, "update {update}");
    }
}

#[test]
fn a_damaged_file_is_fatal_if_configured() {
    let (data, [jpeg, _]) = damaged();
    let dir = RunDir::new();
    let ended = train(&dir, data.path(), 5).set("task.on_error", "fatal").ranks(2).run();
    let message = format!("{} is a truncated JPEG file", jpeg.display());
    assert!(ended.iter().all(|rank| rank.code() == Some(1) && rank.stderr.contains(&message)), "{ended:#?}");
    assert!(ended.iter().any(|rank| rank.stderr.contains("task.on_error = \"skip\"")), "{ended:#?}");
}

#[test]
fn a_run_without_readable_samples_fails() {
    let dir = RunDir::new();
    let data = TempDir::new_in(scratch()).unwrap();
    for split in ["train", "valid"] {
        fs::create_dir_all(data.path().join(split).join("class")).unwrap();
        for i in 0..20 {
            fs::write(data.path().join(split).join(format!("class/{i}.png")), "no picture").unwrap();
        }
    }
    let ended = train(&dir, data.path(), 5).ranks(2).run();
    for rank in &ended {
        assert_refused(rank, 1, "none of the 12 samples of an update could be read");
    }
}

#[test]
fn invalid_image_data_is_refused() {
    let run = RunDir::new();
    let data = TempDir::new_in(scratch()).unwrap();
    let refused = |message: &str| assert_refused(&train(&run, data.path(), 5).run().remove(0), 2, message);
    refused("holds neither class folders");
    fs::create_dir_all(data.path().join("train")).unwrap();
    refused("holds no class folders");
    fs::create_dir_all(data.path().join("train/cat")).unwrap();
    refused("train/cat holds no PNG or JPEG files");
    let job = train(&run, drawn(), 5).set("task.augment", "{ shift_pixels = 2.0 }");
    assert_refused(&job.run().remove(0), 2, "task.augment is for idx files");
    let job = train(&run, drawn(), 5).set("task.crop", "{ scale = [0.0, 1.0] }");
    assert_refused(&job.run().remove(0), 2, "task.crop: scale = [0, 1]");
    let job = train(&run, drawn(), 5).set("task.mean", "[0.5, 0.5]");
    assert_refused(&job.run().remove(0), 2, "expected a number or [red, green, blue]");
    let job = train(&run, drawn(), 5).set("task.model", "resnet51");
    assert_refused(&job.run().remove(0), 2, "Did you mean `resnet50`?");
    assert_refused(
        &Job::new(["prep", "image-folder", "--out"]).arg(drawn()).run().remove(0),
        2,
        "already has a folder `train`",
    );
}

fn assert_refused(ended: &Ended, code: i32, message: &str) {
    assert_eq!(ended.code(), Some(code), "{ended:#?}");
    assert!(ended.stderr.contains(message), "{message}: {}", ended.stderr);
}

#[test]
fn a_trained_model_classifies_files() {
    let dir = RunDir::new();
    train(&dir, drawn(), 2).succeed();
    let output = Job::new(["eval"]).arg(dir.path()).arg("--json").succeed();
    let accuracy = serde_json::from_str::<serde_json::Value>(&output).unwrap()["accuracy"].as_f64().unwrap();
    // Folders are classes. A file that is not an image has no class, and the others still have one.
    let images = dir.path().join("images");
    copy_dir(&drawn().join("valid"), &images);
    fs::write(images.join("damaged.png"), b"no image").unwrap();
    let job = Job::new(["predict"]).arg(dir.path()).arg("--input").arg(&images);
    let ended = job.run();
    assert_eq!(ended[0].code(), Some(0), "{ended:#?}");
    assert!(ended[0].stderr.contains("damaged.png") && ended[0].stderr.contains("it gets no class"), "{ended:#?}");
    let rows: Vec<Vec<&str>> = ended[0].stdout.lines().skip(1).map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), VALID_SAMPLES as usize + 1);
    assert!(rows.iter().any(|row| row[0].ends_with("damaged.png") && row[1].is_empty()), "{rows:?}");
    let correct = rows.iter().filter(|row| row[0].contains(&format!("/{}/", row[1])) && !row[1].is_empty()).count();
    assert_eq!(correct as f64 / f64::from(VALID_SAMPLES), accuracy);

    // An export needs no config of the run.
    let export = dir.path().join("export");
    Job::new(["export"]).arg(dir.path()).arg("--out").arg(&export).succeed();
    let one = rows[0][0];
    let output = Job::new(["predict"]).arg(&export).arg("--input").arg(one).arg("--json").succeed();
    let json: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&json["file"], &json["label"]), (&one.into(), &rows[0][1].into()));

    // Models and inputs that cannot be used are named.
    let refused = |model: &Path, input: &Path, expected: &str| {
        let ended = Job::new(["predict"]).arg(model).arg("--input").arg(input).run();
        assert_eq!(ended[0].code(), Some(2), "{ended:#?}");
        assert!(ended[0].stderr.contains(expected), "{expected}: {}", ended[0].stderr);
    };
    refused(&export, &dir.path().join("missing.txt"), "missing.txt");
    let list = dir.path().join("list.txt");
    fs::write(&list, "\n").unwrap();
    refused(&export, &list, "lists no image");
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => copy_dir(&entry.path(), &to.join(entry.file_name())),
            false => _ = fs::copy(entry.path(), to.join(entry.file_name())).unwrap(),
        }
    }
}
