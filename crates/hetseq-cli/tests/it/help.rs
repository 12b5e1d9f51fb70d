//! What can be typed is told.

use crate::cluster::Job;

#[test]
fn every_subcommand_explains_itself() {
    let told: [(&str, &[&str]); 21] = [
        (
            "",
            &[
                "train",
                "eval",
                "generate",
                "score",
                "average",
                "demo",
                "devices",
                "bench",
                "prep",
                "hetseq demo",
                "--set",
                "-v, --verbose",
            ],
        ),
        ("generate", &["--beam", "--n-best", "--interactive", "line numbers never shift"]),
        (
            "train",
            &[
                "CONFIG",
                "--set",
                "--weight",
                "--resume",
                "--reset",
                "--from-flags",
                "--optimizer-overrides",
                "--distributed-rank",
                "RANK",
                "75",
            ],
        ),
        ("eval", &["CONFIG", "--set", "--checkpoint", "--json", "--distributed-rank"]),
        (
            "score",
            &["HYPOTHESES", "REFERENCES", "--tokenize", "--smooth", "--metrics", "chrf++", "sacrebleu", "--json"],
        ),
        ("average", &["CHECKPOINT", "--last", "--out", "RUN"]),
        ("demo", &["--dir", "--slowdown"]),
        ("devices", &["--json"]),
        ("plan", &["CONFIG", "--set", "--profile", "profile.json", "--tokens-per-sample", "--json"]),
        (
            "simulate",
            &[
                "--profile",
                "--global-batch",
                "--scale",
                "--workers",
                "--line-gbit",
                "--disturb",
                "--fail",
                "mixed-8.json",
            ],
        ),
        ("report", &["RUN", "--json", "metrics.jsonl"]),
        ("bench", &["step", "comm", "data"]),
        ("bench comm", &["--world", "--mb", "--wire", "--route", "--own", "--json"]),
        ("bench data", &["DIRS", "--batch", "--max-seq-length", "--json"]),
        ("bench step", &["--config", "base2", "--threads", "--devices", "--batch", "bench-pytorch", "--json"]),
        ("prep", &["digits", "image-folder", "bert", "translate", "verify"]),
        (
            "prep bert",
            &["INPUT", "--output", "--vocab-size", "--valid-fraction", "--format", "--dupe-factor", "--shard-mb"],
        ),
        (
            "prep translate",
            &[
                "--source",
                "--valid-target",
                "--out",
                "--separate",
                "--tokenizer",
                "--max-ratio",
                "Example",
                "data/en-de",
            ],
        ),
        ("prep verify", &["DIR", "--vocab-size", "--json"]),
        ("prep digits", &["--train", "--test", "--seed"]),
        ("prep image-folder", &["--train", "--valid", "--seed"]),
    ];
    for (command, words) in told {
        let text = Job::new(command.split_whitespace().chain(["--help"])).succeed();
        for word in words {
            assert!(text.contains(word), "`hetseq {command} --help` does not mention {word}:\n{text}");
        }
    }
}

#[test]
fn the_version() {
    let version = Job::new(["--version"]).succeed();
    assert!(version.starts_with(concat!("hetseq ", env!("CARGO_PKG_VERSION"), " (build ")), "{version}");
}

#[test]
fn what_cannot_be_meant_is_usage() {
    let wrong: [(&[&str], &str); 4] = [
        (&[], "Usage: hetseq"),
        (&["trian"], "'train'"),
        (&["train"], "<CONFIG>"),
        (&["train", "x.toml", "--reset", "everything"], "optimizer, schedule, data"),
    ];
    for (args, part) in wrong {
        let ended = Job::new(args).run().remove(0);
        assert_eq!(ended.code(), Some(2), "{args:?}");
        assert!(ended.stderr.contains(part), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
}
