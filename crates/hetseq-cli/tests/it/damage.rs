//! Damaged checkpoints: they are named, never used and never removed, and a run falls back to the
//! previous one.

use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::cluster::{Ended, Job, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const WEIGHTS: &str = "model.safetensors";

fn flip_a_bit(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, bytes).unwrap();
}

fn cut(file: &Path) {
    let bytes = fs::read(file).unwrap();
    fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
}

/// A run of six updates with three checkpoints; the second one is the best.
fn six_updates() -> RunDir {
    let dir = RunDir::new();
    job(&dir, 6).succeed();
    assert_eq!(dir.checkpoints(), ["step-2", "step-4", "step-6"]);
    let best = dir.checkpoint("best");
    fs::remove_file(&best).unwrap();
    fs_err::os::unix::fs::symlink("step-4", best).unwrap();
    dir
}

fn job(dir: &RunDir, updates: u64) -> Job {
    shipped(dir, updates).set("checkpoint.every", "2 updates").set("valid.every", "2 updates")
}

fn assert_failed(ended: &Ended, parts: &[&str]) {
    assert_eq!(ended.code(), Some(1), "{ended:#?}");
    for part in parts {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
}

#[test]
fn a_run_resumes_from_the_newest_intact_checkpoint() {
    for (file, damage) in
        [(WEIGHTS, flip_a_bit as fn(&Path)), ("trainer/optimizer.safetensors", cut), ("trainer/state.json", flip_a_bit)]
    {
        let dir = six_updates();
        damage(&dir.checkpoint("step-6").join(file));
        let before = dir.contents();
        // A checkpoint that the user names must be intact.
        let named = job(&dir, 8).arg("--resume").arg(dir.checkpoint("step-6")).run().remove(0);
        assert_failed(&named, &["step-6 is damaged: ", file]);
        let damaged = fs::read(dir.checkpoint("step-6").join(file)).unwrap();
        assert_eq!(dir.contents(), before);
        let ended = job(&dir, 8).ranks(2).run();
        assert_eq!(codes(&ended), [Some(0); 2], "{ended:#?}");
        for part in ["step-6 is damaged and not used: ", file, "resuming from", "step-4"] {
            assert!(ended[0].stderr.contains(part), "{file}, {part}: {}", ended[0].stderr);
        }
        assert_eq!(dir.starts(), [(1, 0), (2, 4)]);
        assert_eq!(dir.link("last"), "step-8");
        let kept = dir.path().join("before-1/checkpoints/step-6").join(file);
        assert_eq!(fs::read(kept).unwrap(), damaged);
        Reference::shipped().assert_losses(&dir, 8, "after a damaged checkpoint");
    }
}

#[test]
fn a_run_without_an_intact_checkpoint_does_not_start_over() {
    let dir = six_updates();
    for step in ["step-2", "step-4", "step-6"] {
        flip_a_bit(&dir.checkpoint(step).join(WEIGHTS));
    }
    let before = dir.contents();
    assert_failed(&job(&dir, 8).run()[0], &["step-6 is damaged: model.safetensors is not what was saved"]);
    assert_failed(&Job::mnist("eval", dir.path()).run()[0], &["is damaged: model.safetensors"]);
    assert_eq!(dir.contents(), before);
}

#[test]
fn a_damaged_best_checkpoint_is_not_used() {
    let dir = six_updates();
    let best = dir.checkpoint("step-4");
    flip_a_bit(&best.join(WEIGHTS));
    let to = |name: &str| dir.path().join(name);
    let evaluated = Job::mnist("eval", dir.path()).run().remove(0);
    assert!(evaluated.code() == Some(0) && evaluated.stdout.contains("checkpoints/step-6\n"), "{evaluated:#?}");
    assert!(evaluated.stderr.contains("step-4 is damaged and not used"), "{}", evaluated.stderr);
    let link = dir.checkpoint("best");
    let named =
        |command: &str, path: &Path, to: &PathBuf| Job::new([command]).arg(path).arg("--out").arg(to).run().remove(0);
    for ended in [
        Job::mnist("eval", dir.path()).arg("--checkpoint").arg(&link).run().remove(0),
        named("export", &best, &to("a")),
        named("export", &link, &to("a")),
        named("average", &best, &to("a")),
    ] {
        assert_failed(&ended, &["is damaged: model.safetensors is not what was saved"]);
        assert!(!to("a").exists());
    }
    Job::new(["export"]).arg(dir.path()).arg("--out").arg(to("exported")).succeed();
    assert_eq!(
        fs::read(to("exported").join(WEIGHTS)).unwrap(),
        fs::read(dir.checkpoint("step-6").join(WEIGHTS)).unwrap()
    );
    let mean = Job::new(["average", "--last", "2"]).arg(dir.path()).arg("--out").arg(to("mean")).run().remove(0);
    assert!(mean.code() == Some(0) && mean.stderr.contains("step-4 is damaged and not used"), "{mean:#?}");
    assert!(mean.stderr.contains("mean of ") && mean.stderr.contains("step-2, "), "{}", mean.stderr);
}

#[test]
fn an_empty_or_missing_model_is_not_exported() {
    let dir = six_updates();
    let to = dir.path().join("exported");
    for step in ["step-2", "step-4", "step-6"] {
        fs::write(dir.checkpoint(step).join(WEIGHTS), "").unwrap();
    }
    let export = || Job::new(["export"]).arg(dir.path()).arg("--out").arg(&to).run().remove(0);
    assert_failed(&export(), &["is damaged: model.safetensors has 0 bytes, "]);
    fs::remove_file(dir.checkpoint("step-4").join("trainer/manifest.json")).unwrap();
    assert_failed(
        &Job::new(["export"]).arg(dir.checkpoint("step-4")).arg("--out").arg(&to).run()[0],
        &["is damaged: model.safetensors: "],
    );
    assert!(!to.exists());
}

#[test]
fn a_checkpoint_of_an_older_version_is_used_with_a_warning() {
    let dir = six_updates();
    for step in ["step-2", "step-4", "step-6"] {
        fs::remove_file(dir.checkpoint(step).join("trainer/manifest.json")).unwrap();
    }
    let ended = job(&dir, 8).run().remove(0);
    assert_eq!(ended.code(), Some(0), "{ended:#?}");
    assert!(ended.stderr.contains("step-6 was saved without a manifest"), "{}", ended.stderr);
    assert_eq!(dir.starts(), [(1, 0), (1, 6)]);
    Reference::shipped().assert_losses(&dir, 8, "from a checkpoint without a manifest");
}
