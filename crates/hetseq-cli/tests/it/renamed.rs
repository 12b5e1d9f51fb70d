//! Old config keys and task names: they still work, and a warning names the new ones.

use fs_err as fs;

use crate::cluster::Job;
use crate::run_dir::RunDir;

#[test]
fn old_keys_train_with_warnings_and_are_stored_under_their_new_names() {
    let dir = RunDir::new();
    let text = "[run]\ntask = \"masked-words\"\nmax_updates = 2\ndevices = \"cpu:1\"\n[task]\ngeometry = \"tiny\"\nsamples = 32\n\
                [batch]\nglobal = 8\nsplit = \"equal\"\n[optim]\nname = \"adam\"\nlr = 1e-4\n\
                [comm]\nown = 1.0\nwire = \"bf16\"\nroute = \"direct\"\n";
    let config = dir.path().join("old.toml");
    fs::write(&config, text).unwrap();
    let job = Job::new(["train".as_ref(), config.as_os_str()]).set("comm.measure", false);
    let ended = job.set("run.dir", dir.path().display()).run().remove(0);
    assert_eq!(ended.code(), Some(0), "{ended:#?}");
    for warning in [
        "comm.own is now comm.shard_weight",
        "comm.wire is now comm.wire_dtype",
        "comm.route is now comm.algorithm",
        "comm.measure is now comm.measure_links",
        "run.task = \"masked-words\" is now run.task = \"synthetic-bert\"",
    ] {
        assert_eq!(ended.stderr.matches(warning).count(), 1, "{warning}: {}", ended.stderr);
    }
    let resolved = fs::read_to_string(dir.path().join("config.toml")).unwrap();
    for line in [
        "task = \"synthetic-bert\"",
        "shard_weight = 1.0",
        "wire_dtype = \"bf16\"",
        "algorithm = \"direct\"",
        "measure_links = false",
    ] {
        assert!(resolved.contains(line), "{line}:\n{resolved}");
    }
}

#[test]
fn old_and_new_name_of_a_key_at_once_are_refused() {
    let dir = RunDir::new();
    let job = Job::mnist("train", dir.path()).set("comm.own", 1).set("comm.shard_weight", 2);
    let ended = job.run().remove(0);
    assert_eq!(ended.code(), Some(2), "{ended:#?}");
    assert!(ended.stderr.contains("shard_weight"), "{}", ended.stderr);
}

/// `--out` was `--output` in some commands, and the last argument in others.
#[test]
fn old_forms_of_out_work_and_warn() {
    let dir = RunDir::new();
    let text = "The first sentence.\nThe second sentence.\n\n".repeat(20);
    fs::write(dir.path().join("text.txt"), text).unwrap();
    let old_forms: [(&[&str], &str); 3] = [
        (&["prep", "digits", "digits", "--train", "20", "--test", "10"], "DIR as the last argument is now --out DIR"),
        (&["prep", "bert", "text.txt", "--output=bert", "--vocab-size", "100"], "--output is now --out;"),
        (&["migrate", "--output", "run.toml", "python3 train.py --task mnist --data d"], "--output is now --out;"),
    ];
    for (args, warning) in old_forms {
        let ended = Job::new(args).in_dir(dir.path()).run().remove(0);
        assert_eq!(ended.code(), Some(0), "{args:?}: {ended:#?}");
        assert_eq!(ended.stderr.matches(warning).count(), 1, "{args:?}: {}", ended.stderr);
    }
    for written in ["digits/train-images-idx3-ubyte.gz", "bert/corpus.json", "run.toml"] {
        assert!(dir.path().join(written).is_file(), "{written}");
    }
    // A flag of the old command is no flag of `migrate`.
    let args = ["migrate", "--out", "-", "python3", "train.py", "--task", "mnist", "--data", "d", "--output", "x"];
    let ended = Job::new(args).in_dir(dir.path()).run().remove(0);
    assert!(!ended.stderr.contains("is now"), "{}", ended.stderr);
}
