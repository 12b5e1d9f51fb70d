//! Converts whole command lines from the documentation of the old programs.

use std::collections::BTreeMap;

use hetseq_train::{Config, ConfigSource};
use toml::{Table, Value};

use super::command;
use super::convert::{ConvertContext, Converted, convert};
use super::{summary, words};

/// From the documentation of the original HetSeq, for one machine. `tests/it/migrate.rs` trains the
/// converted run.
const MNIST: &str = include_str!("../../tests/fixtures/original-mnist.sh");

const BERT: &str = "DIST=/d
    python3 ${DIST}/train.py --task bert --data ${DIST}/test_128/ --dict ${DIST}/vocab.txt \\
        --config_file ${DIST}/bert_config.json --max_pred_length 20 --max-sentences 32 --fast-stat-sync \\
        --max-update 900000 --update-freq 4 --valid-subset test --num-workers 4 --warmup-updates 10000 \\
        --total-num-update 1000000 --lr 0.0001 --weight-decay 0.01 --save-dir bert_node2gpu4 \\
        --distributed-init-method tcp://10.0.0.1:11111 --distributed-world-size 8 --distributed-gpus 4 --distributed-rank 0";

const IWSLT: &str = "CUDA_VISIBLE_DEVICES=0,1 fairseq-train data-bin/iwslt14 --arch transformer_iwslt_de_en \\
    --share-decoder-input-output-embed --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 --lr 5e-4 \\
    --lr-scheduler inverse_sqrt --warmup-updates 4000 --dropout 0.3 --weight-decay 0.0001 --max-epoch 50 \\
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 4096 --update-freq 2 \\
    --keep-last-epochs 10 --patience 5 --min-lr 1e-9 --seed 7 --fp16";

fn converted(line: &str) -> Converted {
    let environment = |name: &str| (name == "HOME").then(|| "/home/me".to_owned());
    let given = command::read(&words::parse(line, &environment).unwrap()).unwrap();
    let has_idx = |dir: &std::path::Path| dir == std::path::Path::new("/home/me/hetseq/MNIST/raw");
    convert(&given, &ConvertContext { tasks: &["images", "bert-pretrain"], world: None, has_idx: &has_idx })
}

/// `section.key` to value of the written file, which must be a valid config.
fn keys(line: &str) -> BTreeMap<String, Value> {
    let text = summary::toml(&converted(line), line);
    let config: Result<Config<Table>, _> = ConfigSource::from_text("run.toml", text.clone(), &[]).parse();
    assert!(config.is_ok(), "{line}: {:?}\n{text}", config.err());
    written(line)
}

fn written(line: &str) -> BTreeMap<String, Value> {
    let table: Table = summary::toml(&converted(line), line).parse().unwrap();
    let keys_of = |(section, table): (String, Value)| match table {
        Value::Table(table) => {
            table.into_iter().map(|(key, value)| (format!("{section}.{key}"), value)).collect::<Vec<_>>()
        }
        value => panic!("{section} = {value}"),
    };
    table.into_iter().flat_map(keys_of).collect()
}

fn assert_keys(line: &str, expected: &str) {
    let expected: Table = expected.parse().unwrap();
    let keys = keys(line);
    assert_eq!(keys, expected.into_iter().collect::<BTreeMap<_, _>>(), "{line}");
}

fn assert_warnings(line: &str, expected: &[&str]) {
    let converted = converted(line);
    let warnings: Vec<&str> = converted.warnings.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(warnings, expected, "{line}");
}

#[test]
fn the_documented_mnist_command_is_converted() {
    assert_keys(
        MNIST,
        r#"
        "run.task" = "images"
        "run.max_epochs" = 20
        "run.dir" = "mnist_single_node"
        "task.data" = "/home/me/hetseq/MNIST/raw"
        "batch.global" = 64
        "batch.micro" = 64
        "optim.name" = "adadelta"
        "optim.lr" = 1.01
        "optim.schedule" = { kind = "polynomial", total_updates = 50000 }
        "optim.clip_norm" = 100.0
        "#,
    );
    assert_warnings(MNIST, &["--valid-subset test", "old checkpoints"]);
}

#[test]
fn the_documented_bert_command_for_two_machines_is_converted() {
    assert_keys(
        BERT,
        r#"
        "run.task" = "bert-pretrain"
        "run.max_updates" = 900000
        "run.dir" = "bert_node2gpu4"
        "task.data" = "/d/test_128/"
        "task.config" = "/d/bert_config.json"
        "task.tokenizer" = "/d/vocab.txt"
        "task.max_predictions_per_seq" = 20
        "batch.global" = 1024
        "batch.micro" = 32
        "optim.name" = "adamw"
        "optim.weight_decay" = 0.01
        "optim.lr" = 0.0001
        "optim.schedule" = { kind = "polynomial", warmup_updates = 10000, total_updates = 1000000 }
        "optim.clip_norm" = 25.0
        "#,
    );
    let commands = converted(BERT).launch.commands("run.toml");
    assert_eq!(commands.len(), 2);
    assert!(
        commands[1].ends_with("tcp://10.0.0.1:11111 --distributed-world-size 2 --distributed-rank 1"),
        "{commands:?}"
    );
    // The file is a valid config, whatever the task.
    let text = summary::toml(&converted(BERT), BERT);
    let config: Config<Table> = ConfigSource::from_text("run.toml", text, &[]).parse().unwrap();
    assert_eq!(config.batch.global.to_string(), "1024 sequences");
}

#[test]
fn the_documented_translation_command_is_converted() {
    assert_keys(
        IWSLT,
        r#"
        "run.task" = "translation"
        "run.max_epochs" = 50
        "run.stop_min_lr" = 1e-9
        "run.seed" = 7
        "task.data" = "data-bin/iwslt14"
        "task.dropout" = 0.3
        "batch.global" = "16384 tokens"
        "batch.max_tokens" = 4096
        "optim.name" = "adamw"
        "optim.betas" = [0.9, 0.98]
        "optim.weight_decay" = 0.0001
        "optim.lr" = 5e-4
        "optim.schedule" = { kind = "inverse-sqrt", warmup_updates = 4000 }
        "valid.patience" = 5
        "checkpoint.keep" = 10
        "#,
    );
    let first = ["--task translation", "--arch transformer_iwslt_de_en", "--share-decoder-input-output-embed"];
    let rest = ["--criterion label_smoothed_cross_entropy", "--label-smoothing 0.1", "--fp16"];
    assert_warnings(IWSLT, &[first, rest].concat());
}

#[test]
fn learning_rates_and_schedules_are_converted() {
    for (flags, schedule) in [
        ("--lr 0.25,0.1,0.05", "{ kind = 'epochs' }"),
        (
            "--lr 0.25,0.1 --force-anneal 5 --lr-shrink 0.5 --warmup-updates 7",
            "{ kind = 'epochs', warmup_updates = 7, shrink = 0.5, shrink_from_epoch = 5 }",
        ),
        ("--lr 0.25 --fa 5", "{ kind = 'epochs', shrink = 0.1, shrink_from_epoch = 5 }"),
        ("--lr 0.25 --fa 1", "{ kind = 'epochs', shrink = 0.1 }"),
        ("--lr 0.1", "'constant'"),
        ("--lr 0.1 --lr-scheduler inverse_sqrt", "{ kind = 'inverse-sqrt', warmup_updates = 4000 }"),
        (
            "--lr 1e-5 --lr-scheduler cosine --max-lr 1e-3 --warmup-updates 10 --lr-period-updates 90",
            "{ kind = 'cosine', warmup_updates = 10, end_lr = 1e-5, total_updates = 100 }",
        ),
        (
            "--lr 0.1 --lr-scheduler polynomial_decay --total-num-update 9 --power 2 --end-learning-rate 0.01",
            "{ kind = 'polynomial', total_updates = 9, end_lr = 0.01, power = 2.0 }",
        ),
        ("--lr 0.1 --lr-scheduler tri_stage", "'constant'"),
    ] {
        let keys = keys(&format!("fairseq-train x --max-sentences 8 --max-epoch 1 {flags}"));
        let expected: Table = format!("x = {schedule}").parse().unwrap();
        assert_eq!(keys["optim.schedule"], expected["x"], "{flags}");
    }
    // The old programs shrink the last rate from the given epoch on, also before the end of the
    // list.
    for (flags, rates) in [
        ("--lr 0.25,0.1,0.05", "[0.25, 0.1, 0.05]"),
        ("--lr 0.25,0.1,0.04 --fa 2 --lr-shrink 0.5", "[0.25, 0.02]"),
        ("--lr 0.5 --fa 1 --lr-shrink 0.5", "0.25"),
    ] {
        let keys = keys(&format!("fairseq-train x --max-sentences 8 --max-epoch 1 {flags}"));
        assert_eq!(keys["optim.lr"].to_string(), rates, "{flags}");
    }
}

#[test]
fn optimizers_are_converted() {
    for (flags, expected) in [
        ("", "name = 'sgd'\nmomentum = 0.99\nnesterov = true\nlr = 0.25"),
        ("--optimizer sgd --lr 1 --wd 0.1", "name = 'sgd'\nmomentum = 0.0\nlr = 1.0\nweight_decay = 0.1"),
        ("--optimizer adam --adam-eps 1e-6 --lr 1", "name = 'adam'\neps = 1e-6\nlr = 1.0"),
        (
            "--optimizer adadelta --adadelta-rho 0.8 --adadelta-eps 1e-5 --lr 1",
            "name = 'adadelta'\nrho = 0.8\neps = 1e-5\nlr = 1.0",
        ),
        ("--optimizer lamb --adam-betas 0.8,0.9 --lr 1", "name = 'lamb'\nbetas = [0.8, 0.9]\nlr = 1.0"),
        ("--optimizer nag --momentum 0 --lr 1", "name = 'sgd'\nmomentum = 0.0\nlr = 1.0"),
        (
            "--optimizer adafactor --relative-step --warmup-init --adafactor-eps '(1e-30, 1e-3)' --lr 1",
            "name = 'adafactor'\nrelative_step = true\nscale_parameter = false\nwarmup_init = true\neps = [1e-30, 1e-3]",
        ),
        (
            "--optimizer adafactor --warmup-init --scale-parameter --adam-eps 1e-8 --lr 1",
            "name = 'adafactor'\nrelative_step = false\nscale_parameter = true\nwarmup_init = false\nlr = 1.0",
        ),
    ] {
        let mut keys = keys(&format!("fairseq-train x --max-sentences 8 --max-epoch 1 {flags}"));
        keys.retain(|key, _| key.starts_with("optim.") && key != "optim.schedule");
        let expected: Table = expected.parse().unwrap();
        let expected: BTreeMap<String, Value> =
            expected.into_iter().map(|(key, value)| (format!("optim.{key}"), value)).collect();
        assert_eq!(keys, expected, "{flags}");
    }
}

#[test]
fn checkpoints_and_validation_are_converted() {
    for (flags, expected) in [
        ("--no-save --disable-validation --patience 3", "'checkpoint.every' = 'never'\n'valid.every' = 'never'"),
        (
            "--save-interval-updates 500 --keep-interval-updates 2",
            "'checkpoint.every' = '500 updates'\n'checkpoint.keep' = 2\n'valid.every' = '500 updates'",
        ),
        ("--save-interval 2 --no-epoch-checkpoints", "'checkpoint.every' = '2 epochs'\n'checkpoint.keep' = 1"),
        ("--keep-last-epochs -1 --validate-interval 3", "'valid.every' = '3 epochs'"),
        ("--best-checkpoint-metric accuracy", "'checkpoint.best' = 'accuracy'"),
    ] {
        let mut keys = keys(&format!("train.py --task mnist --data /x --max-sentences 8 --max-epoch 1 {flags}"));
        keys.retain(|key, _| key.starts_with("checkpoint.") || key.starts_with("valid."));
        let expected: Table = expected.parse().unwrap();
        assert_eq!(keys, expected.into_iter().collect::<BTreeMap<_, _>>(), "{flags}");
    }
}

#[test]
fn missing_settings_and_invalid_numbers_are_warnings() {
    let line = "train.py --task mnist --lr fast --update-freq 4,2 --seed x";
    assert_warnings(
        line,
        &[
            "no data",
            "--seed x",
            "--update-freq",
            "no batch size",
            "number of GPUs",
            "--lr fast",
            "old checkpoints",
            "no end",
        ],
    );
    let keys = written(line);
    assert_eq!((&keys["batch.global"], &keys["run.max_epochs"]), (&Value::Integer(32), &Value::Integer(100)));
    assert_warnings(
        "train.py --task mnist --data ${NOWHERE} --max-sentences 8 --max-epoch 1 --cpu --keep-last-epochs 2",
        &["${NOWHERE}", "task.data"],
    );
}

#[test]
fn flags_without_effect_are_warnings() {
    for (flags, expected) in [
        ("--optimizer adam --momentum 0.9 --adadelta_rho 0.8", &["--momentum 0.9", "--adadelta_rho 0.8"][..]),
        ("--optimizer adafactor --adam-eps 1e-8 --warmup-init", &["--adam-eps 1e-8", "--warmup-init"]),
        ("--optimizer adafactor --relative-step --lr 1", &["--relative-step", "--lr 1"]),
        ("--optimizer adafactor --adafactor-eps 1e-30", &["--adafactor-eps 1e-30"]),
        ("--lr-scheduler inverse_sqrt --power 2 --force-anneal 3", &["--power 2", "--force-anneal 3"]),
        ("--lr-shrink 0.5 --max-lr 1 --distributed-port 1", &["--lr-shrink 0.5", "--max-lr 1", "--distributed-port 1"]),
        ("--disable-validation --patience 3 --validate-interval 2", &["--patience 3", "--validate-interval 2"]),
        (
            "--seed -7 --warmup-updates -5 --max-epoch -2 --min-lr -3",
            &["--seed -7", "--warmup-updates -5", "--max-epoch -2", "--min-lr -3"],
        ),
        ("--warmup-updates soon --save-interval 1.5", &["--warmup-updates soon", "--save-interval 1.5"]),
        ("--keep-last-epochs -1 --patience -1 --min-lr -1 --warmup-updates 0", &[]),
        ("--power", &["--power"]),
    ] {
        let line =
            format!("fairseq-train x --task images --max-sentences 8 --max-update 9 --cpu --clip-norm 1 {flags}");
        let converted = converted(&line);
        let always = ["old checkpoints", "task.data"];
        let warnings = converted.warnings.iter().map(|(what, _)| what.as_str()).filter(|what| !always.contains(what));
        assert_eq!(warnings.collect::<Vec<_>>(), expected, "{flags}");
        keys(&line);
    }
}

#[test]
fn control_characters_cannot_end_a_comment() {
    let line = "fairseq-train x --max-update 9 --max-sentences 8 --save-dir 'a\n[comm]\tencrypt = true \u{1b}[31m\u{7f}' \
                --task 'x\n[debug]' --optimizer 'y\r\nlr = 7'";
    let keys = keys(line);
    assert_eq!(keys["run.dir"].as_str(), Some("a\n[comm]\tencrypt = true \u{1b}[31m\u{7f}"));
    assert!(keys.keys().all(|key| !key.starts_with("comm") && !key.starts_with("debug")), "{keys:?}");
    let summary = summary::lines(&converted(line), "fairseq", "run.toml", true);
    assert!(summary.iter().all(|line| !line.contains(char::is_control)), "{summary:?}");
}

#[test]
fn a_truncated_command_line_is_converted_or_refused() {
    for line in [MNIST, BERT, IWSLT] {
        for end in 0..line.len() {
            if let Ok(script) = words::parse(&line[..end], &|_| None)
                && let Ok(given) = command::read(&script)
            {
                let has_idx = |_: &std::path::Path| false;
                let converted = convert(&given, &ConvertContext { tasks: &[], world: None, has_idx: &has_idx });
                summary::toml(&converted, &line[..end]).parse::<Table>().unwrap();
            }
        }
    }
}

#[test]
fn the_summary_is_complete() {
    let line = format!("{IWSLT} --no-such-flag 3");
    let text = summary::lines(&converted(&line), "fairseq", "run.toml", true).join("\n");
    for part in [
        "Converted a command line of fairseq.",
        "batch.global = \"16384 tokens\"",
        "4096 tokens x 2 GPUs x update-freq 2",
        "needs your attention:\n",
        "there is no task translation; available tasks: images, bert-pretrain",
        "unknown flags, ignored:\n  --no-such-flag 3\n",
        "Wrote run.toml.",
        "Start the run:\n  hetseq train run.toml",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
}
