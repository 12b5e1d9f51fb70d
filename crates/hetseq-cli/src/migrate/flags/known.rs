//! The table of known flags and what they become. `convert.rs`, `optim.rs` and `launch.rs` convert
//! the combined ones.

use super::Becomes::{self, Combined, Key, Manual, NotNeeded};
use super::Origin::{self, Both, Fairseq, Hetseq};
use super::Takes::{self, Count, Maybe, Nothing, Value};
use super::{Flag, FlagKind};

const fn flag(names: &'static [&'static str], takes: Takes, origin: Origin, becomes: Becomes) -> Flag {
    Flag { names, takes, origin, becomes }
}

const MODEL: &str = "set the shape of the model in the [task] table";
const TEXT: &str = "set how text is read and prepared in the [task] table";
const PRECISION: &str = "set run.precision to \"f16\", \"bf16\" or \"auto\" (what each device supports)";
const WEIGHTS: &str = "a run resumes only from its own checkpoints; task.init loads weights with Hugging Face's names";
const NETWORK: &str = "gradients are exchanged over hetseq's own TCP links and summed in a fixed order";
const LAUNCH: &str = "the commands that start the ranks, printed at the end";
const SCHEDULE: &str = "`optim.schedule`";
const POLYNOMIAL: &str = "`optim.schedule` for a polynomial decay";
const COSINE: &str = "`optim.schedule` for `--lr-scheduler cosine`";
const EPOCHS: &str = "`optim.schedule` for `--lr-scheduler fixed` with `--force-anneal`";
const METRICS: &str = "metrics.jsonl in the run directory has all metrics";
const ADAFACTOR: &str = "`optim`, with `optim.name = \"adafactor\"`";

pub(in crate::migrate) static FLAGS: &[Flag] = &[
    // Task and model.
    flag(&["task"], Value, Both, Combined("`run.task`: mnist is `images`, bert is `bert-pretrain`")),
    flag(&["data"], Value, Hetseq, Combined("`task.data`; in fairseq the first positional argument")),
    flag(&["config_file"], Value, Hetseq, Key("task.config", FlagKind::Text)),
    flag(&["max_pred_length"], Value, Hetseq, Key("task.max_predictions_per_seq", FlagKind::Count)),
    flag(&["dict"], Value, Hetseq, Key("task.tokenizer", FlagKind::Text)),
    flag(
        &["num_file"],
        Value,
        Hetseq,
        Manual("all files of the directory are read; for fewer, create a directory of links"),
    ),
    flag(&["transformers_state_dict"], Value, Hetseq, Key("task.init", FlagKind::Text)),
    flag(&["hetseq_state_dict", "load_state_dict_strict"], Value, Hetseq, Manual(WEIGHTS)),
    flag(
        &[
            "train_file",
            "validation_file",
            "test_file",
            "extension_file",
            "root_data_dir",
            "entities",
            "ent_vecs_filename",
        ],
        Value,
        Hetseq,
        Manual(
            "belongs to the tasks for named entities and entity linking: write [task] by hand, see docs/tasks/fine-tuning.md",
        ),
    ),
    flag(&["train-subset"], Value, Both, Manual("the task finds its training files in task.data")),
    flag(&["valid-subset"], Value, Both, Manual("the task finds its validation files in task.data")),
    flag(&["user-dir"], Value, Fairseq, Manual("a custom task is a Rust file: see examples/custom-task")),
    flag(&["arch", "a"], Value, Fairseq, Manual(MODEL)),
    flag(&["criterion", "label-smoothing", "report-accuracy"], Maybe, Fairseq, Manual("the loss belongs to the task")),
    flag(&["dropout"], Value, Fairseq, Key("task.dropout", FlagKind::Bound)),
    flag(
        &[
            "encoder-*",
            "decoder-*",
            "share-*",
            "attention-dropout",
            "activation-*",
            "relu-dropout",
            "adaptive-*",
            "pooler-*",
            "no-token-positional-embeddings",
            "layernorm-embedding",
            "max-positions",
            "max-source-positions",
            "max-target-positions",
            "num-classes",
            "classification-head-name",
        ],
        Maybe,
        Fairseq,
        Manual(MODEL),
    ),
    flag(
        &[
            "source-lang",
            "s",
            "target-lang",
            "t",
            "left-pad-source",
            "left-pad-target",
            "truncate-source",
            "upsample-primary",
            "load-alignments",
            "tokens-per-sample",
            "sample-break-mode",
            "mask-prob",
            "leave-unmasked-prob",
            "random-token-prob",
            "mask-whole-words",
            "tokenizer",
            "bpe",
            "init-token",
            "separator-token",
            "regression-target",
            "shorten-method",
            "shorten-data-split-list",
        ],
        Maybe,
        Fairseq,
        Manual(TEXT),
    ),
    flag(
        &["eval-*", "scoring", "best-bleu"],
        Maybe,
        Fairseq,
        Manual("`hetseq eval` evaluates a checkpoint with the metrics of the task, `hetseq score` scores translations"),
    ),
    // Batches.
    flag(
        &["max-sentences", "batch-size"],
        Count,
        Both,
        Combined("`batch.global` (times GPUs and update-freq) and `batch.micro`"),
    ),
    flag(
        &["max-tokens"],
        Count,
        Both,
        Combined("`batch.global` in tokens (times GPUs and update-freq) and `batch.max_tokens`"),
    ),
    flag(&["update-freq"], Value, Both, Combined("`batch.global`")),
    flag(&["curriculum"], Value, Both, Key("batch.curriculum_epochs", FlagKind::Count)),
    flag(&["required-batch-size-multiple"], Value, Both, NotNeeded("an update has exactly the size of batch.global")),
    flag(
        &["max-tokens-valid", "max-sentences-valid", "batch-size-valid"],
        Value,
        Both,
        NotNeeded("batch.micro and batch.max_tokens apply to validation too"),
    ),
    flag(
        &["num-workers", "data-buffer-size"],
        Value,
        Both,
        NotNeeded("samples are loaded ahead while the devices compute"),
    ),
    flag(
        &["fix-batches-to-gpus"],
        Nothing,
        Both,
        NotNeeded("the samples of an update never depend on the devices; the split follows measured speed"),
    ),
    flag(&["dataset-impl"], Value, Fairseq, NotNeeded("the format is detected from the files")),
    flag(
        &["skip-invalid-size-inputs-valid-test"],
        Nothing,
        Fairseq,
        Manual("samples are not skipped silently: one that is too long is an error that names it"),
    ),
    flag(
        &["sentence-avg"],
        Nothing,
        Fairseq,
        Manual("each loss term is divided by its own global count: tokens or sentences, depending on the task"),
    ),
    // Optimizer and schedule.
    flag(&["optimizer"], Value, Both, Combined("`optim.name`; the old adam with weight decay is adamw")),
    flag(&["lr", "learning-rate"], Value, Both, Combined("`optim.lr`; a list is one rate per epoch")),
    flag(&["lr-scheduler"], Value, Both, Combined(SCHEDULE)),
    flag(&["warmup-updates", "total-num-update"], Count, Both, Combined(SCHEDULE)),
    flag(&["end-learning-rate", "power"], Value, Both, Combined(POLYNOMIAL)),
    flag(&["max-lr"], Value, Fairseq, Combined(COSINE)),
    flag(&["lr-period-updates"], Count, Fairseq, Combined(COSINE)),
    flag(&["warmup-init-lr"], Value, Fairseq, Manual("warm-up starts at 0")),
    flag(&["force-anneal", "fa"], Count, Both, Combined(EPOCHS)),
    flag(&["lr-shrink"], Value, Both, Combined(EPOCHS)),
    flag(
        &["t-mult", "lr-patience", "lr-threshold"],
        Value,
        Fairseq,
        Manual("no schedule restarts or waits for a plateau: choose optim.schedule by hand"),
    ),
    flag(&["clip-norm"], Value, Both, Combined("`optim.clip_norm`; 0 means no clipping")),
    flag(
        &["weight-decay", "wd", "dadelta_weight_decay"],
        Value,
        Both,
        Combined("`optim.weight_decay`; not applied to biases and norms"),
    ),
    flag(&["momentum"], Value, Fairseq, Combined("`optim.momentum`")),
    flag(&["adam-betas"], Value, Both, Combined("`optim.betas`")),
    flag(&["adam-eps", "adadelta_eps"], Value, Both, Combined("`optim.eps`")),
    flag(&["adadelta_rho"], Value, Both, Combined("`optim.rho`")),
    flag(
        &["anneal-eps", "use-old-adam", "adam-no-amsgrad"],
        Nothing,
        Fairseq,
        NotNeeded("Adam and Adadelta are those of PyTorch"),
    ),
    flag(&["adafactor-eps", "clip-threshold", "decay-rate", "beta1"], Value, Fairseq, Combined(ADAFACTOR)),
    flag(&["scale-parameter", "relative-step", "warmup-init"], Nothing, Fairseq, Combined(ADAFACTOR)),
    flag(
        &["use-bmuf", "block-*", "global-sync-iter", "slowmo-*", "localsgd-frequency"],
        Maybe,
        Both,
        Manual("every update is one update of all machines; models are not averaged"),
    ),
    // End of the run.
    flag(&["max-epoch", "me"], Value, Both, Key("run.max_epochs", FlagKind::Limit)),
    flag(&["max-update", "mu"], Value, Both, Key("run.max_updates", FlagKind::Limit)),
    flag(&["min-lr", "stop-min-lr"], Value, Both, Key("run.stop_min_lr", FlagKind::Bound)),
    flag(&["patience"], Value, Fairseq, Key("valid.patience", FlagKind::Limit)),
    flag(
        &["stop-time-hours"],
        Value,
        Fairseq,
        Manual(
            "let the scheduler send a signal before its limit (Slurm: --signal=USR1@120): the run saves, exits with 75 and can resume",
        ),
    ),
    // Validation and checkpoints.
    flag(&["validate-interval", "validate-interval-updates"], Count, Both, Combined("`valid.every`")),
    flag(&["disable-validation"], Nothing, Both, Combined("`valid.every = \"never\"`")),
    flag(
        &["validate-after-updates", "fixed-validation-seed"],
        Value,
        Fairseq,
        NotNeeded("validation is not random and may start at the first update"),
    ),
    flag(&["save-dir"], Value, Both, Key("run.dir", FlagKind::Text)),
    flag(&["save-interval", "save-interval-updates"], Count, Both, Combined("`checkpoint.every`")),
    flag(&["keep-last-epochs", "keep-interval-updates"], Count, Both, Combined("`checkpoint.keep`")),
    flag(&["no-epoch-checkpoints"], Nothing, Both, Combined("`checkpoint.keep = 1`")),
    flag(
        &["keep-best-checkpoints"],
        Value,
        Fairseq,
        Manual("one best checkpoint is kept, and the newest checkpoint.keep"),
    ),
    flag(
        &["no-save"],
        Nothing,
        Both,
        Combined("`checkpoint.every = \"never\"`; the best, a stop and the end are still saved"),
    ),
    flag(
        &["no-last-checkpoints", "no-save-optimizer-state"],
        Nothing,
        Both,
        NotNeeded("a checkpoint is always complete, so that a resume is exact"),
    ),
    flag(&["best-checkpoint-metric"], Value, Both, Key("checkpoint.best", FlagKind::Text)),
    flag(&["maximize-best-checkpoint-metric"], Nothing, Both, NotNeeded("the task defines which direction is better")),
    flag(
        &["checkpoint-suffix", "write-checkpoints-asynchronously"],
        Maybe,
        Fairseq,
        NotNeeded("checkpoints are written in the background, and are complete or absent"),
    ),
    flag(
        &["restore-file"],
        Value,
        Both,
        Manual("a run resumes from its newest checkpoint, or from --resume PATH; it cannot resume from a .pt file"),
    ),
    flag(&["finetune-from-model"], Value, Fairseq, Manual(WEIGHTS)),
    flag(&["reset-optimizer"], Nothing, Both, Combined("`--reset optimizer` on the command line")),
    flag(&["reset-lr-scheduler"], Nothing, Both, Combined("`--reset schedule` on the command line")),
    flag(&["reset-dataloader"], Nothing, Both, Combined("`--reset data` on the command line")),
    flag(&["reset-meters"], Nothing, Both, NotNeeded("a resume appends to metrics.jsonl; it has no running averages")),
    flag(
        &["optimizer-overrides"],
        Value,
        Both,
        Combined("the same flag on the command line; or change `optim` in run.toml"),
    ),
    // Devices and network.
    flag(&["distributed-init-method"], Value, Both, Combined(LAUNCH)),
    flag(&["distributed-world-size", "distributed-rank"], Count, Both, Combined(LAUNCH)),
    flag(&["distributed-gpus"], Count, Hetseq, Combined(LAUNCH)),
    flag(&["distributed-port", "distributed-num-procs", "nprocs-per-node"], Count, Fairseq, Combined(LAUNCH)),
    flag(&["device-id", "local_rank"], Value, Both, NotNeeded("a process uses all devices that run.devices names")),
    flag(&["cpu"], Nothing, Both, Combined("`run.devices = \"cpu\"`")),
    flag(
        &["distributed-backend", "ddp-backend", "bucket-cap-mb", "distributed-wrapper", "all-gather-list-size"],
        Value,
        Both,
        NotNeeded(NETWORK),
    ),
    flag(
        &["distributed-no-spawn", "find-unused-parameters", "fast-stat-sync", "broadcast-buffers", "heartbeat-timeout"],
        Maybe,
        Both,
        NotNeeded(NETWORK),
    ),
    flag(
        &["model-parallel-size", "pipeline-*", "zero-sharding", "cpu-offload"],
        Maybe,
        Fairseq,
        Manual("every device holds the whole model; memory limits the micro-batch only (batch.micro)"),
    ),
    flag(&["tpu"], Nothing, Fairseq, Manual("TPUs are not supported")),
    flag(&["fp16", "memory-efficient-fp16", "bf16", "memory-efficient-bf16", "amp"], Nothing, Both, Manual(PRECISION)),
    flag(
        &["fp16-*", "min-loss-scale", "threshold-loss-scale", "on-cpu-convert-precision"],
        Maybe,
        Fairseq,
        NotNeeded("the loss scale is automatic"),
    ),
    flag(&["empty-cache-freq"], Value, Fairseq, NotNeeded("freed memory is kept and reused")),
    // Logs.
    flag(&["seed"], Value, Both, Key("run.seed", FlagKind::Count)),
    flag(&["log-interval"], Value, Both, Key("run.log_every", FlagKind::Limit)),
    flag(&["no-progress-bar"], Nothing, Both, NotNeeded("a progress bar is shown only on a terminal")),
    flag(&["log-format", "log-file", "tensorboard-logdir", "wandb-project"], Value, Both, NotNeeded(METRICS)),
    flag(&["azureml-logging", "profile"], Nothing, Fairseq, NotNeeded(METRICS)),
    flag(&["quantization-config-path"], Value, Fairseq, Manual("quantization is not supported")),
];
