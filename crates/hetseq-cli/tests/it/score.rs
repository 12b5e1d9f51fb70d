//! `hetseq score` prints like sacrebleu. hetseq-metrics tests the numbers themselves against it.

use std::path::PathBuf;

use fs_err as fs;
use tempfile::TempDir;

use crate::cluster::{Ended, Job};
use crate::data::scratch;

/// A directory of text files, removed on drop.
struct Files(TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Files {
        let dir = TempDir::new_in(scratch()).unwrap();
        files.iter().for_each(|(name, content)| fs::write(dir.path().join(name), content).unwrap());
        Files(dir)
    }

    fn score(&self, args: &str) -> Job {
        Job::new(["score"]).args(args.split_whitespace()).in_dir(self.0.path())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn translations() -> Files {
    Files::new(&[
        ("out", "The cat sat on the mat.\nIt costs $1,000.50, he said!\n\n"),
        ("ref", "The cat sat on a mat.\nIt costs $1,000.50 he said!\r\nsomething\n"),
        ("other", "A cat was sitting on the mat.\nit costs 1,000.50 dollars\n\n"),
        ("short", "The cat\nsat\n"),
    ])
}

#[test]
fn the_output_is_that_of_sacrebleu() {
    let files = translations();
    // sacrebleu ref -i out -f text
    let bleu = "BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0 = 49.6 \
                86.7/69.2/45.5/22.2 (BP = 1.000 ratio = 1.000 hyp_len = 15 ref_len = 15)\n";
    assert_eq!(files.score("out ref").succeed(), bleu);
    // sacrebleu ref other -i out -f text -m bleu chrf -cw 2 -lc --chrf-lowercase -tok intl -s floor
    let both = files.score("out ref other --metrics bleu chrf++ bleu --lowercase --tokenize intl --smooth floor");
    let expected = [
        "BLEU|nrefs:2|case:lc|eff:no|tok:intl|smooth:floor[0.10]|version:2.6.0 = 62.8 \
         86.7/84.6/63.6/33.3 (BP = 1.000 ratio = 1.071 hyp_len = 15 ref_len = 14)\n",
        "     chrF2++|nrefs:2|case:lc|eff:yes|nc:6|nw:2|space:no|version:2.6.0 = 68.9\n",
    ];
    assert_eq!(both.succeed(), expected.concat());
}

#[test]
fn json_is_printed() {
    let files = translations();
    let output = files.score("out ref --json --metrics bleu,chrf,chrf++").succeed();
    let objects: Vec<serde_json::Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = objects.iter().map(|object| object["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["BLEU", "chrF2", "chrF2++"]);
    assert_eq!((&objects[0]["hyp_len"], &objects[0]["lines"]), (&15.into(), &3.into()));
    assert!(objects[0]["precisions"][3].as_f64().unwrap() > 22.2, "{output}");
    assert!(objects[1].get("precisions").is_none() && objects[1]["score"].as_f64().unwrap() > 50.0, "{output}");
    assert_eq!(objects[2]["signature"], "nrefs:1|case:mixed|eff:yes|nc:6|nw:2|space:no|version:2.6.0");
}

#[test]
fn compressed_files_and_standard_input_are_read() {
    let files = translations();
    let expected = files.score("out ref").succeed();
    let compressed = std::process::Command::new("gzip").arg(files.path("ref")).status();
    assert!(compressed.unwrap().success());
    assert_eq!(files.score("out ref.gz").succeed(), expected);
    let piped = files.score("- ref.gz").under(&["/bin/sh", "-c", "exec \"$0\" \"$@\" < out"]);
    assert_eq!(piped.succeed(), expected);
}

#[test]
fn tokenized_lines_are_reported() {
    let files = Files::new(&[("out", &"a b .\n".repeat(100)), ("ref", &"a b.\n".repeat(100))]);
    let Ended { stderr, stdout, .. } = files.score("out ref").run().remove(0);
    assert!(stderr.contains("seems to be tokenized") && stdout.starts_with("BLEU|"), "{stderr}{stdout}");
    assert_eq!(files.score("out ref --tokenize none").run()[0].stderr, "");
}

#[test]
fn invalid_files_and_flags_are_refused() {
    let files = translations();
    fs::write(files.path("latin1"), b"a\nb\xe4\nc\n").unwrap();
    fs::write(files.path("zero"), b"a\n\0\nc\n").unwrap();
    fs::write(files.path("empty"), b"").unwrap();
    for (args, parts) in [
        ("out ref short", &["out has 3 lines, but short has 2"][..]),
        ("out latin1", &["latin1, line 2", "not UTF-8"]),
        ("zero ref", &["zero, line 2", "zero byte"]),
        ("empty empty", &["empty has no lines"]),
        ("out nowhere", &["nowhere"]),
        ("out", &["<REFERENCES>"]),
        ("- -", &["standard input"]),
        ("out ref --tokenize 14a", &["13a, intl, none"]),
        ("out ref --metrics ter", &["bleu, chrf, chrf++"]),
    ] {
        let ended = files.score(args).run().remove(0);
        assert_eq!((ended.code(), ended.stdout.as_str()), (Some(2), ""), "{args}: {}", ended.stderr);
        for part in parts {
            assert!(ended.stderr.contains(part), "{args}: {}", ended.stderr);
        }
    }
}
