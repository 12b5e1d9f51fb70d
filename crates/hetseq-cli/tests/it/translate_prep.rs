//! `hetseq prep translate`, and `prep verify` of its output.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::cluster::Job;
use crate::data::scratch;
use crate::prep::assert_damage_is_found;

const TRAIN: usize = 400;
const VALID: usize = 30;

/// A new directory with parallel text.
fn text_dir(name: &str) -> PathBuf {
    let dir = scratch().join(name);
    fs::create_dir_all(&dir).unwrap();
    for (split, lines) in [("train", TRAIN), ("val", VALID)] {
        let line = |words: [&str; 3], at: usize| format!("{} {at} {} {}.\n", words[0], words[1], words[at % 3]);
        let text = |words| (0..lines).map(|at| line(words, at)).collect::<String>();
        fs::write(dir.join(format!("{split}.en")), text(["The ship", "was seen near", "the coast"])).unwrap();
        fs::write(dir.join(format!("{split}.de")), text(["Das Schiff", "war zu sehen an", "der K\u{fc}ste"])).unwrap();
    }
    dir
}

fn prep(dir: &Path, out: &str, more: &[&str]) -> Job {
    let path = |name: &str| dir.join(name).display().to_string();
    let files = [
        ("--source", "train.en"),
        ("--target", "train.de"),
        ("--valid-source", "val.en"),
        ("--valid-target", "val.de"),
    ];
    let files = files.into_iter().flat_map(|(flag, name)| [flag.to_owned(), path(name)]);
    let given = ["prep", "translate", "--vocab-size", "200", "--out"].map(str::to_owned);
    Job::new(given.into_iter().chain([path(out)]).chain(files).chain(more.iter().map(|arg| (*arg).to_owned())))
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

/// The names and contents of all files in a directory.
fn content(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

#[test]
fn parallel_text_becomes_a_corpus_that_can_be_checked() {
    let dir = text_dir("translate-prep");
    let output = prep(&dir, "out", &["--source-lang", "en", "--target-lang", "de"]).succeed();
    for part in
        ["read", "kept", "400", "30", "valid  de", "per word", "200 tokens in the vocabulary of both sides, 2 shards"]
    {
        assert!(output.contains(part), "{part} is not in\n{output}");
    }
    let first = content(&dir.join("out"));
    let names: Vec<&str> = first.keys().map(String::as_str).collect();
    let expected = [
        "corpus.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "train-00000.tokens",
        "valid-00001.tokens",
        "valid-00001.txt",
    ];
    assert_eq!(names, expected);
    assert_eq!(first["valid-00001.txt"], fs::read(dir.join("val.de")).unwrap(), "the references are the target lines");

    let again = json(&prep(&dir, "out", &["--source-lang", "en", "--target-lang", "de", "--json"]).succeed());
    assert_eq!((again["was_there"].as_bool(), again["train"]["pairs"].as_u64()), (Some(true), Some(400)));
    assert!(content(&dir.join("out")) == first, "files have changed");
    prep(&dir, "other", &["--source-lang", "en", "--target-lang", "de"]).succeed();
    assert!(content(&dir.join("other")) == first, "the same input gave other bytes");

    let out = dir.join("out").display().to_string();
    let checked = json(&Job::new(["prep", "verify", &out, "--json"]).succeed());
    assert_eq!((checked["train"]["kind"].as_str(), checked["train"]["pairs"].as_u64()), (Some("pairs"), Some(400)));
    assert_eq!(checked["train"]["source_tokens"], again["train"]["source"]["tokens"]);
    let output = Job::new(["prep", "verify", &out]).succeed();
    assert!(output.contains("valid: pairs, intact: 30 with"), "{output}");

    assert_damage_is_found(&dir.join("out"));
}

#[test]
fn two_unigram_vocabularies_and_a_given_one() {
    let dir = text_dir("translate-prep-two");
    let two = json(&prep(&dir, "two", &["--model", "unigram", "--separate", "--json"]).succeed());
    assert_eq!(two["joint"], false);
    let tokenizer = dir.join("two").display().to_string();
    let path = |name: &str| dir.join(name).display().to_string();
    let mut args = ["prep", "translate", "--json", "--tokenizer", &tokenizer].map(str::to_owned).to_vec();
    // Several files per flag, and no validation files.
    for (flag, files) in [("--source", ["train.en", "val.en"]), ("--target", ["train.de", "val.de"])] {
        args.push(flag.to_owned());
        args.extend(files.map(path));
    }
    args.extend(["--out".to_owned(), path("given")]);
    let given = json(&Job::new(&args).succeed());
    assert_eq!((given["train"]["pairs"].as_u64(), given["valid"]["pairs"].as_u64()), (Some(430), Some(0)));
    assert_eq!(given["source_vocabulary"], two["source_vocabulary"]);
    let (two, given) = (content(&dir.join("two")), content(&dir.join("given")));
    assert!(two["source_tokenizer.json"] == given["source_tokenizer.json"]);
    let output = Job::new(["prep", "verify", &path("given")]).succeed();
    assert!(output.contains("train: pairs, intact: 430") && !output.contains("valid"), "{output}");
}

#[test]
fn pairs_outside_the_limits_are_dropped_and_counted() {
    let dir = text_dir("translate-prep-drops");
    let add = |name: &str, lines: &str| {
        let text = fs::read_to_string(dir.join(name)).unwrap();
        fs::write(dir.join(name), text + lines).unwrap();
    };
    add("train.en", &format!("\nThe ship was seen {}\nseen\n", "near the coast ".repeat(8)));
    add("train.de", "leer\nDas Schiff war zu sehen\nwar\n");
    let counts = json(&prep(&dir, "out", &["--min-length", "3", "--json"]).succeed())["train"].clone();
    assert_eq!((counts["read"].as_u64(), counts["pairs"].as_u64()), (Some(403), Some(400)), "{counts}");
    for (reason, line) in [("empty", 401), ("ratio", 402), ("too_short", 403)] {
        let dropped = &counts["dropped"][reason];
        assert_eq!(
            (dropped["pairs"].as_u64(), dropped["first_line"].as_u64()),
            (Some(1), Some(line)),
            "{reason}: {counts}"
        );
    }
    let output = prep(&dir, "out", &["--min-length", "3"]).succeed();
    assert!(output.contains("dropped: lengths too different") && output.contains("train.en, line 402"), "{output}");
}

#[test]
fn invalid_input_is_reported_with_file_and_line() {
    let dir = text_dir("translate-prep-wrong");
    let whole = fs::read(dir.join("train.de")).unwrap();
    let with = |bytes: &[u8]| [&whole[..], bytes].concat();
    let cases: [(&str, Vec<u8>, &[&str]); 6] = [
        ("train.de", with(b"one more\n"), &["train.en has 400 lines", "train.de has 401"]),
        ("val.de", with(b""), &["val.en has 30 lines", "val.de has 400"]),
        ("train.de", with(b"K\xfcste\n"), &["train.de, line 401: it is not UTF-8"]),
        ("train.de", with(b"a\0b\n"), &["train.de, line 401: there is a zero byte"]),
        ("train.de", Vec::new(), &["train.de has no lines"]),
        ("train.de", b"\n".repeat(TRAIN), &["none of the 400 pairs", "400 a side is empty", "train.en, line 1"]),
    ];
    for (name, bytes, parts) in cases {
        let before = fs::read(dir.join(name)).unwrap();
        fs::write(dir.join(name), bytes).unwrap();
        let ended = prep(&dir, "out", &[]).run().remove(0);
        assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
        assert!(parts.iter().all(|part| ended.stderr.contains(part)), "{parts:?}: {}", ended.stderr);
        fs::write(dir.join(name), before).unwrap();
    }
    prep(&dir, "out", &[]).succeed();

    let path = |name: &str| dir.join(name).display().to_string();
    fs::write(
        dir.join("tokenizer.json"),
        fs::read_to_string(dir.join("out/tokenizer.json")).unwrap().replace("<pad>", "<x>"),
    )
    .unwrap();
    let given: Vec<String> =
        ["prep", "translate", "--source", &path("train.en"), "--target", &path("train.de")].map(str::to_owned).to_vec();
    for (more, part) in [
        (vec!["--out", "new", "--tokenizer", "tokenizer.json"], "it has no <pad>, which translation needs"),
        (vec!["--out", "new", "--tokenizer", "nowhere"], "nowhere"),
        (vec!["--out", "new", "--max-ratio", "0.3"], "max-ratio: 0.3"),
        (vec!["--out", "new", "--vocab-size", "3"], "vocab-size: 3"),
        (vec!["--out", "new", "--valid-source", "val.en"], "--valid-target"),
        (vec!["--out", "out"], "valid_source"),
        (vec!["--out", "train.en"], "train.en"),
        (vec!["--tokenizer", "tokenizer.json", "--separate", "--out", "new"], "--separate"),
    ] {
        let job = Job::new(&given).args(&more).in_dir(&dir);
        let ended = job.run().remove(0);
        assert_eq!(ended.code(), Some(2), "{more:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{more:?}: {}", ended.stderr);
    }
    let ended = Job::new(["prep", "bert", &path("train.en"), "--out", &path("out")]).run().remove(0);
    assert!(ended.code() == Some(2) && ended.stderr.contains("`pairs`"), "{}", ended.stderr);
}
