//! `--help` of every subcommand, `--version`, and errors for wrong usage.

use crate::cluster::Job;

#[test]
fn the_help_of_every_subcommand_names_its_flags() {
    let expected: [(&str, &[&str]); 27] = [
        (
            "",
            &[
                "train",
                "eval",
                "generate",
                "predict",
                "score",
                "average",
                "migrate",
                "demo",
                "devices",
                "selftest",
                "bench",
                "prep",
                "hetseq demo",
                "--set",
                "-v, --verbose",
            ],
        ),
        ("predict", &["--input", "--out", "--set", "--json", "Examples:"]),
        ("generate", &["--beam", "--n-best", "--interactive", "Marian", "Examples:"]),
        ("export", &["RUN", "CHECKPOINT", "--out", "--precision", "Examples:"]),
        ("migrate", &["--out", "--overwrite", "--world-size", "COMMAND", "fairseq-train", "Examples:"]),
        (
            "train",
            &[
                "CONFIG",
                "--set",
                "--weight",
                "--resume",
                "--reset",
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
        ("selftest", &["--devices", "--out", "--only", "--timeout", "Examples:"]),
        ("config", &["reference"]),
        ("config reference", &["SECTION", "TASK", "Examples:"]),
        ("plan", &["CONFIG", "--set", "--profile", "profile.json", "--tokens-per-sample", "--json"]),
        (
            "simulate",
            &[
                "--profile",
                "--global-batch",
                "--scale",
                "--workers",
                "--link-gbit",
                "--disturb",
                "--fail",
                "mixed-8.json",
            ],
        ),
        ("report", &["RUN", "--json", "metrics.jsonl"]),
        ("bench", &["step", "comm", "data"]),
        (
            "bench comm",
            &["--world", "--mb", "--wire-dtype", "--algorithm", "--shard-weight", "--measure-links", "--json"],
        ),
        ("bench data", &["DIRS", "--batch", "--max-seq-length", "--json"]),
        ("bench step", &["--config", "base2", "--threads", "--devices", "--batch", "bench-pytorch", "--json"]),
        ("prep", &["digits", "image-folder", "bert", "translate", "verify"]),
        (
            "prep bert",
            &["INPUT", "--out", "--vocab-size", "--valid-fraction", "--format", "--dupe-factor", "--shard-mb"],
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
        ("prep digits", &["--out", "--train", "--test", "--seed"]),
        ("prep image-folder", &["--out", "--train", "--valid", "--seed"]),
    ];
    for (command, words) in expected {
        let text = Job::new(command.split_whitespace().chain(["--help"])).succeed();
        for word in words {
            assert!(text.contains(word), "`hetseq {command} --help` does not mention {word}:\n{text}");
        }
    }
}

#[test]
fn the_version_names_the_build() {
    let version = Job::new(["--version"]).succeed();
    assert!(version.starts_with(concat!("hetseq ", env!("CARGO_PKG_VERSION"), " (build ")), "{version}");
}

#[test]
fn wrong_usage_exits_with_code_2() {
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

/// The list of subcommands has one line each, in short phrases without a full stop.
#[test]
fn the_summaries_of_subcommands_fit_on_one_line() {
    for group in ["", "bench", "config", "prep"] {
        let text = Job::new(group.split_whitespace().chain(["--help"])).succeed();
        let commands = text.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
        for line in commands.lines() {
            assert!(line.starts_with("  ") && !line.starts_with("   "), "`hetseq {group}` wraps:\n{commands}");
            assert!(line.len() <= 100 && !line.ends_with('.'), "{line}");
        }
    }
}
