//! A resume with other optimizer settings: the state comes from the checkpoint, the settings from
//! the command, and changes are reported.

use fs_err as fs;

use crate::cluster::codes;
use crate::reference::shipped;
use crate::run_dir::RunDir;

fn change(key: &str, was: &str, is: &str) -> (String, String, String) {
    (key.to_owned(), was.to_owned(), is.to_owned())
}

/// The learning rate of an update (from 1) for a base rate. The shipped schedule warms up for 50
/// updates.
fn warmup_rate(base: f64, update: u64) -> f64 {
    base * ((update - 1) as f64 / 50.0)
}

#[test]
fn overrides_apply_from_the_resume_on() {
    let dir = RunDir::new();
    shipped(&dir, 4).succeed();
    let job = shipped(&dir, 6).ranks(2).arg("--optimizer-overrides").arg("{'lr': 1e-3, 'betas': (0.9, 0.98)}");
    let ended = job.run();
    assert_eq!(codes(&ended), [Some(0); 2], "{ended:#?}");
    assert!(ended[0].stderr.contains("optim.lr changed from 0.005 to 0.001"), "{}", ended[0].stderr);
    let expected = [
        change("optim.betas", "[0.9, 0.999]", "[0.9, 0.98]"),
        change("optim.lr", "0.005", "0.001"),
        change("run.max_updates", "4", "6"),
    ];
    assert_eq!(dir.changed(), expected);
    let rates = dir.learning_rates();
    assert_eq!((rates[&4], rates[&5]), (warmup_rate(0.005, 4), warmup_rate(0.001, 5)));
    // The config in the run directory has the overrides. The original file does not, and applies
    // when it is used again.
    assert!(fs::read_to_string(dir.path().join("config.toml")).unwrap().contains("lr = 0.001"));
    shipped(&dir, 7).succeed();
    assert_eq!(dir.changed().len(), 3);
    assert_eq!(dir.learning_rates()[&7], warmup_rate(0.005, 7));
}

#[test]
fn a_changed_config_applies_too() {
    let dir = RunDir::new();
    shipped(&dir, 4).succeed();
    shipped(&dir, 5).set("optim.lr", 0.002).set("optim.weight_decay", 0.1).succeed();
    let expected = [
        change("optim.lr", "0.005", "0.002"),
        change("optim.weight_decay", "0.0", "0.1"),
        change("run.max_updates", "4", "5"),
    ];
    assert_eq!(dir.changed(), expected);
    assert_eq!(dir.learning_rates()[&5], warmup_rate(0.002, 5));
    // The moments were restored: a reset would start the step count at 0.
    let state = fs::read_to_string(dir.checkpoint("step-5/trainer/state.json")).unwrap();
    assert!(state.contains("\"step\": 5.0"), "{state}");
}

#[test]
fn overrides_need_a_checkpoint_and_all_ranks() {
    let dir = RunDir::new();
    let refused = shipped(&dir, 4).arg("--optimizer-overrides").arg("lr=0.001").run().remove(0);
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(refused.stderr.contains("but this would be a new run"), "{}", refused.stderr);
    // `{}` is what fairseq's scripts pass for none.
    shipped(&dir, 4).arg("--optimizer-overrides").arg("{}").succeed();
    let job = shipped(&dir, 6).ranks(2).set("comm.join_s", 3);
    let ended = job.arg_on(1, "--optimizer-overrides").arg_on(1, "lr=0.001").run();
    assert_eq!(codes(&ended), [Some(1), Some(2)], "{ended:#?}");
    assert!(ended[0].stderr.contains("optim.lr: 0.005 here, 0.001 on rank 1"), "{}", ended[0].stderr);
    for (text, message) in [
        ("lrr=1", "--optimizer-overrides lrr=1: unknown key `lrr`. Did you mean `lr`?"),
        ("name=sgd", "add --reset optimizer"),
        ("lr=fast", "`fast` is not a number"),
    ] {
        let refused = shipped(&dir, 6).arg("--optimizer-overrides").arg(text).run().remove(0);
        assert_eq!(refused.code(), Some(2), "{refused:?}");
        assert!(refused.stderr.contains(message), "{text}: {}", refused.stderr);
    }
}
