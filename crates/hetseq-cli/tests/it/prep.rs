//! `hetseq prep bert`, `prep verify` and `bench data`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::cluster::Job;
use crate::data::scratch;

/// A new directory with text: forty documents in the format of WikiText.
fn text_dir(name: &str) -> PathBuf {
    let dir = scratch().join(name);
    fs::create_dir_all(&dir).unwrap();
    let mut text = String::new();
    for document in 0..40 {
        let _ = write!(text, " \n = Ship {document} = \n \n");
        for sentence in 0..30 {
            let _ = write!(
                text,
                " The ship sailed {sentence} @,@ 000 miles past <unk> in {} . It came back late . ",
                document * 31
            );
        }
        let _ = write!(text, "\n \n = = Fate = = \n \n It was lost . \n");
    }
    fs::write(dir.join("text.txt"), text).unwrap();
    dir
}

fn prep(dir: &std::path::Path, more: &[&str]) -> Job {
    let (input, output) = (dir.join("text.txt").display().to_string(), dir.join("out").display().to_string());
    let given = ["prep", "bert", &input, "--out", &output, "--vocab-size", "300", "--valid-fraction", "0.1"];
    Job::new(given.iter().chain(more).map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn text_becomes_a_corpus_that_can_be_checked_and_timed() {
    let dir = text_dir("prep-compact");
    let output = prep(&dir, &[]).succeed();
    assert!(output.contains("train: 36 documents, 2,196 sentences"), "{output}");
    assert!(output.contains("valid: 4 documents") && output.contains("% unknown"), "{output}");
    let again = json(&prep(&dir, &["--json"]).succeed());
    assert_eq!((again["was_there"].as_bool(), again["train"]["documents"].as_u64()), (Some(true), Some(36)));

    let out = dir.join("out").display().to_string();
    let checked = json(&Job::new(["prep", "verify", &out, "--json"]).succeed());
    assert_eq!(checked["train"]["kind"], "compact");
    let timed = json(&Job::new(["bench", "data", &out, "--seconds", "0.05", "--rounds", "1", "--json"]).succeed());
    assert!(timed["samples_per_second"].as_f64().unwrap() > 0.0, "{timed}");

    assert_damage_is_found(&dir.join("out"));
}

#[test]
fn masked_shards_are_written_and_invalid_settings_refused() {
    let dir = text_dir("prep-hdf5");
    let output = json(&prep(&dir, &["--format", "hdf5", "--dupe-factor", "2", "--json"]).succeed());
    assert_eq!((output["format"].as_str(), output["shards"].as_u64()), (Some("hdf5"), Some(3)));
    let out = dir.join("out").display().to_string();
    let checked = json(&Job::new(["prep", "verify", &out, "--json", "--vocab-size", "300"]).succeed());
    assert_eq!(checked["train"]["kind"], "hdf5");

    for (more, part) in [
        (&["--format", "compact"][..], "format.name: was \"hdf5\", now \"compact\""),
        (&["--valid", "x"], "not both"),
        (&["--shard-mb", "0"], "shard-mb: 0 is not between"),
    ] {
        let ended = prep(&dir, more).run().remove(0);
        assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
    let ended = Job::new(["prep", "verify", &out, "--vocab-size", "100"]).run().remove(0);
    assert!(ended.code() == Some(2) && ended.stderr.contains("has only 100 tokens"), "{}", ended.stderr);
}

#[test]
fn missing_files_and_invalid_flags_are_usage_errors() {
    let dir = text_dir("prep-wrong");
    let nowhere = dir.join("nowhere").display().to_string();
    let text = dir.join("text.txt").display().to_string();
    let out = dir.join("out").display().to_string();
    let bert = |more: &[&str]| [&["prep", "bert"][..], more].concat().iter().map(|arg| (*arg).to_owned()).collect();
    let words = |line: &str| line.split(' ').map(|arg| arg.replace("DIR", &nowhere)).collect();
    let wrong: [(Vec<String>, &str); 9] = [
        (words("prep verify DIR"), "there is no directory"),
        (words("bench data DIR"), "there is no directory"),
        (bert(&[&nowhere, "--out", &out]), "there is no file or directory"),
        (bert(&[&text, "--out", &out, "--valid", &nowhere]), "there is no file or directory"),
        (bert(&[&text, "--out", &out, "--vocab", &nowhere]), "nowhere"),
        (bert(&[&text, "--out", &text]), "text.txt"),
        (bert(&[&text, "--out", &out, "--dupe-factor", "2"]), "--dupe-factor needs --format hdf5"),
        (bert(&[&text, "--out", &out, "--whole-word"]), "--whole-word needs --format hdf5"),
        (words("bench data --seconds nan"), "expected a number from 0 to 86400"),
    ];
    for (args, part) in wrong {
        let ended = Job::new(&args).run().remove(0);
        assert_eq!(ended.code(), Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(part) && !ended.stderr.contains("metadata"), "{args:?}: {}", ended.stderr);
    }
}

/// A flipped bit in the first shard of `out` makes `hetseq prep verify` fail.
pub(crate) fn assert_damage_is_found(out: &Path) {
    let shard = out.join("train-00000.tokens");
    let mut bytes = fs::read(&shard).unwrap();
    bytes[200] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let ended = Job::new(["prep", "verify", &out.display().to_string()]).run().remove(0);
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("train-00000.tokens") && ended.stderr.contains("checksum"), "{}", ended.stderr);
}
