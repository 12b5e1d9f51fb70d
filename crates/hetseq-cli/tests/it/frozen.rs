//! Frozen parameters (`optim.frozen`): they keep the values of the start on any mix of workers, are
//! not exchanged, and wrong names are refused.

use fs_err as fs;
use hetseq_metrics::Event;

use crate::cluster::{Job, codes};
use crate::fine_tuning::train;
use crate::reference::Reference;
use crate::run_dir::RunDir;

const UPDATES: u64 = 12;
const WEIGHTS: &str = "checkpoints/last/model.safetensors";
const FROZEN: &str = r#"["bert.embeddings", "bert.encoder.layer.[0-0]"]"#;

fn is_frozen(name: &str) -> bool {
    name.starts_with("bert.embeddings.") || name.starts_with("bert.encoder.layer.0.")
}

/// Starts with the weights of another run, as fine-tuning does.
fn frozen(start: &RunDir, dir: &RunDir, updates: u64) -> Job {
    let job = train("texts.toml", dir, updates).set("task.init", start.checkpoint("last").display());
    job.set("optim.frozen", FROZEN).set("run.checksum_every", 1)
}

#[test]
fn frozen_parameters_keep_their_values_on_any_mix_of_workers() {
    let start = RunDir::new();
    train("texts.toml", &start, 2).succeed();
    let initial = start.tensors(WEIGHTS);

    let one = RunDir::new();
    frozen(&start, &one, UPDATES).succeed();
    let reference = Reference::of(one, UPDATES);
    // Three ranks, then two: a resume. Recomputing layers changes nothing.
    let dir = RunDir::new();
    let job = |updates| frozen(&start, &dir, updates).set("task.recompute", true).set("debug.gradients", true);
    job(UPDATES / 2).weights(&[7, 2, 1]).succeed();
    job(UPDATES).weights(&[1, 3]).succeed();
    reference.assert_losses(&dir, UPDATES, "frozen");
    assert_eq!(dir.starts(), [(3, 0), (2, UPDATES / 2)]);

    let trained = dir.tensors(WEIGHTS);
    assert!(trained.keys().eq(initial.keys()));
    for (name, values) in &trained {
        assert_eq!(*values == initial[name], is_frozen(name), "{name}");
    }
    let elements = |is_counted: &dyn Fn(&str) -> bool| -> usize {
        trained.iter().filter(|(name, _)| is_counted(name)).map(|(_, values)| values.len()).sum()
    };
    let (all, trainable) = (elements(&|_| true), elements(&|name| !is_frozen(name)));
    assert!(trainable < all / 2, "{trainable} of {all}");

    // Only trainable parameters have gradients, moments and a place in the exchange.
    assert!(dir.gradient(1).keys().eq(trained.keys().filter(|name| !is_frozen(name))));
    let moments = dir.tensors("checkpoints/last/trainer/optimizer.safetensors");
    assert!(moments.len() == 2 && moments.values().all(|moment| moment.len() == trainable));
    let profile: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.path().join("profile.json")).unwrap()).unwrap();
    assert_eq!((&profile["parameters"], &profile["exchange_bytes"]), (&all.into(), &(4 * trainable).into()));
    let counts = |event| match event {
        Event::Start { parameters, frozen_parameters, .. } => Some((parameters, frozen_parameters)),
        _ => None,
    };
    let counts: Vec<_> = dir.events().into_iter().filter_map(counts).collect();
    assert_eq!(counts, [(all, all - trainable); 2]);
}

#[test]
fn other_frozen_parameters_need_a_new_optimizer_state() {
    let start = RunDir::new();
    train("texts.toml", &start, 1).succeed();
    let dir = RunDir::new();
    frozen(&start, &dir, 2).succeed();
    let all = || train("texts.toml", &dir, 4).set("task.init", start.checkpoint("last").display());
    let ended = all().run();
    assert_eq!(codes(&ended), [Some(1)], "{ended:#?}");
    let expected = r#"optim.frozen was ["bert.embeddings", "bert.encoder.layer.[0-0]"] and is [] now"#;
    assert!(ended[0].stderr.contains(expected) && ended[0].stderr.contains("--reset optimizer"), "{ended:#?}");
    // The same parameters by other names are no change.
    frozen(&start, &dir, 3).set("optim.frozen", r#"["bert.emb*", "bert.encoder.layer.0"]"#).succeed();
    let before = dir.tensors(WEIGHTS);
    all().arg("--reset").arg("optimizer").succeed();
    let after = dir.tensors(WEIGHTS);
    // Words that do not occur keep their embeddings, so not all values change; every tensor does.
    assert!(after.iter().all(|(name, values)| *values != before[name]));
}

#[test]
fn wrong_names_are_refused() {
    let dir = RunDir::new();
    for (names, expected) in [
        (
            r#"["bert.embedings"]"#,
            "optim.frozen: the model has no module or parameter `bert.embedings`. Did you mean `bert.embeddings`? Its \
             modules: bert.embeddings, bert.encoder, bert.pooler, classifier",
        ),
        (r#"["bert", "classifier"]"#, "optim.frozen: no parameter is left to train"),
    ] {
        let ended = train("texts.toml", &dir, 1).set("optim.frozen", names).run();
        assert_eq!(codes(&ended), [Some(2)], "{ended:#?}");
        assert!(ended[0].stderr.contains(expected), "{expected}: {}", ended[0].stderr);
    }
    let ended = train("texts.toml", &dir, 1).set("optim.frozen", r#"["bert"]"#).run();
    assert!(codes(&ended) == [Some(0)] && ended[0].stderr.contains(" frozen), "), "{ended:#?}");
}
