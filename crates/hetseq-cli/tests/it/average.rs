//! `hetseq average`: the mean of checkpoints can be used like a checkpoint.

use std::collections::BTreeMap;
use std::path::Path;

use fs_err as fs;
use safetensors::SafeTensors;

use crate::cluster::Job;
use crate::reference::shipped;
use crate::run_dir::RunDir;

fn weights(dir: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = fs::read(dir.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let values = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    file.tensors().into_iter().map(|(name, tensor)| (name, values(tensor.data()))).collect()
}

#[test]
fn the_mean_of_three_checkpoints_is_exact_and_can_be_evaluated() {
    let dir = RunDir::new();
    shipped(&dir, 8).set("checkpoint.every", "2 updates").set("checkpoint.keep", 10).succeed();
    let mean = dir.path().join("mean");
    let output = Job::new(["average"]).arg(dir.path()).args(["--last", "3", "--out"]).arg(&mean).succeed();
    let files = ["config.json", "model.safetensors"].map(|name| mean.join(name).display().to_string());
    assert_eq!(output.lines().collect::<Vec<_>>(), files);

    let three = [4, 6, 8].map(|step| weights(&dir.checkpoint(&format!("step-{step}"))));
    let found = weights(&mean);
    assert!(found.keys().eq(three[0].keys()));
    let mut changed = 0;
    for (name, values) in &found {
        for (at, &value) in values.iter().enumerate() {
            let expected = three.iter().map(|weights| f64::from(weights[name][at])).sum::<f64>() / 3.0;
            assert_eq!(value, expected as f32, "{name}[{at}]");
            changed += usize::from(value != three[2][name][at]);
        }
    }
    assert!(changed > 1000, "the checkpoints hardly differ");

    // The same by name, in another order.
    let named = dir.path().join("named");
    let job =
        [6, 8, 4].iter().fold(Job::new(["average"]), |job, step| job.arg(dir.checkpoint(&format!("step-{step}"))));
    job.arg("--out").arg(&named).succeed();
    assert_eq!(weights(&named), found);

    let loss = |checkpoint: &Path| -> f64 {
        let output = Job::mnist("eval", dir.path()).arg("--json").arg("--checkpoint").arg(checkpoint).succeed();
        serde_json::from_str::<serde_json::Value>(&output).unwrap()["loss"].as_f64().unwrap()
    };
    let losses = [4, 8].map(|step| loss(&dir.checkpoint(&format!("step-{step}"))));
    // While the loss still falls, the mean is between the first and the last. Wrongly mixed
    // weights would be far off.
    assert!((losses[1]..losses[0]).contains(&loss(&mean)), "{losses:?}");

    let exported = dir.path().join("exported");
    Job::new(["export"]).arg(&mean).arg("--out").arg(&exported).succeed();
    assert_eq!(weights(&exported), found);
}

#[test]
fn invalid_arguments_are_refused() {
    let dir = RunDir::new();
    shipped(&dir, 2).set("checkpoint.every", "1 updates").succeed();
    let run = dir.path().display().to_string();
    let step = |number: u64| dir.checkpoint(&format!("step-{number}")).display().to_string();
    let (first, second, full) = (step(1), step(2), step(1));
    let new = dir.path().join("new").display().to_string();
    for (args, part) in [
        (vec![&run, "--last", "5", "--out", &new], "has only 2 intact checkpoints, not 5"),
        (vec![&run, "--out", &new], "is a run: add --last N"),
        (vec![&first, &second, "--last", "2", "--out", &new], "of one run, but 2 paths"),
        (vec![&first, &second, "--out", &full], "exists already"),
        (vec![&first, "nowhere", "--out", &new], "there is no checkpoint nowhere"),
        (vec![&first, &second], "--out"),
    ] {
        let ended = Job::new(["average"]).args(&args).run().remove(0);
        assert_eq!(ended.code(), Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{args:?}: {}", ended.stderr);
        assert!(ended.stdout.is_empty() && !Path::new(&new).exists(), "{args:?}");
    }
}
