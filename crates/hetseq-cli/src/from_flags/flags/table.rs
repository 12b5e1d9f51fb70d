//! Every flag that is known, and what it becomes: the table that `--from-flags` goes by. What the joined ones become
//! together is in `translate.rs`, `optim.rs` and `launch.rs`.

use super::Becomes::{self, Joins, Key, Look, Unneeded};
use super::Origin::{self, Both, Fairseq, Hetseq};
use super::Takes::{self, Count, Maybe, Nothing, Value};
use super::{Flag, Kind};

const fn flag(names: &'static [&'static str], takes: Takes, origin: Origin, becomes: Becomes) -> Flag {
    Flag { names, takes, origin, becomes }
}

const MODEL: &str = "the shape of the model is set in the [task] table";
const TEXT: &str = "how text is read and prepared is set in the [task] table";
const F32: &str = "everything is computed in 32 bits here, for now: the same result, more memory and time";
const WEIGHTS: &str =
    "a run resumes from its own checkpoints, and begins with weights in Hugging Face's names: task.init";
const NETWORK: &str = "gradients travel over our own TCP links, summed in a fixed order";
const LAUNCH: &str = "the line that starts each rank, printed at the end";
const SCHEDULE: &str = "`optim.schedule`";
const POLYNOMIAL: &str = "`optim.schedule` for a polynomial decay";
const COSINE: &str = "`optim.schedule` for `--lr-scheduler cosine`";
const EPOCHS: &str = "`optim.schedule` for `--lr-scheduler fixed` with `--force-anneal`";
const SERVICE: &str = "metrics.jsonl in the run directory has every figure";
const ADAFACTOR: &str = "`optim`, with `optim.name = \"adafactor\"`";

pub(in crate::from_flags) static FLAGS: &[Flag] = &[
    // What to train.
    flag(&["task"], Value, Both, Joins("`run.task`: mnist is `images`, bert is `bert-pretrain`")),
    flag(&["data"], Value, Hetseq, Joins("`task.data`; in fairseq the first argument without dashes")),
    flag(&["config_file"], Value, Hetseq, Key("task.config", Kind::Text)),
    flag(&["max_pred_length"], Value, Hetseq, Key("task.max_predictions_per_seq", Kind::Count)),
    flag(&["dict"], Value, Hetseq, Key("task.tokenizer", Kind::Text)),
    flag(
        &["num_file"],
        Value,
        Hetseq,
        Look("all files of the directory are read; for fewer, make a directory of links to them"),
    ),
    flag(&["transformers_state_dict"], Value, Hetseq, Key("task.init", Kind::Text)),
    flag(&["hetseq_state_dict", "load_state_dict_strict"], Value, Hetseq, Look(WEIGHTS)),
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
        Look("belongs to the tasks for named entities and entity linking, which are not here yet"),
    ),
    flag(&["train-subset"], Value, Both, Look("the training files are those that the task knows: task.data")),
    flag(&["valid-subset"], Value, Both, Look("the validation files are those that the task knows: task.data")),
    flag(&["user-dir"], Value, Fairseq, Look("a task of your own is a Rust file: see examples/custom-task")),
    flag(&["arch", "a"], Value, Fairseq, Look(MODEL)),
    flag(&["criterion", "label-smoothing", "report-accuracy"], Maybe, Fairseq, Look("the loss belongs to the task")),
    flag(&["dropout"], Value, Fairseq, Key("task.dropout", Kind::Bound)),
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
        Look(MODEL),
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
        Look(TEXT),
    ),
    flag(
        &["eval-*", "scoring", "best-bleu"],
        Maybe,
        Fairseq,
        Look("`hetseq eval` scores a checkpoint; the task knows its metrics"),
    ),
    // Batches.
    flag(
        &["max-sentences", "batch-size"],
        Count,
        Both,
        Joins("`batch.global` (times GPUs and update-freq) and `batch.micro`"),
    ),
    flag(
        &["max-tokens"],
        Count,
        Both,
        Joins("`batch.global` in tokens (times GPUs and update-freq) and `batch.max_tokens`"),
    ),
    flag(&["update-freq"], Value, Both, Joins("`batch.global`")),
    flag(&["curriculum"], Value, Both, Key("batch.curriculum_epochs", Kind::Count)),
    flag(
        &["required-batch-size-multiple"],
        Value,
        Both,
        Unneeded("the size of an update is exact, whatever divides it"),
    ),
    flag(
        &["max-tokens-valid", "max-sentences-valid", "batch-size-valid"],
        Value,
        Both,
        Unneeded("validation keeps to batch.micro and batch.max_tokens too"),
    ),
    flag(
        &["num-workers", "data-buffer-size"],
        Value,
        Both,
        Unneeded("samples are prepared ahead while the devices compute"),
    ),
    flag(
        &["fix-batches-to-gpus"],
        Nothing,
        Both,
        Unneeded("which samples form an update never depends on the devices; who computes them follows their speed"),
    ),
    flag(&["dataset-impl"], Value, Fairseq, Unneeded("the format is seen from the files")),
    flag(
        &["skip-invalid-size-inputs-valid-test"],
        Nothing,
        Fairseq,
        Look("no sample is skipped silently: what is too long is an error that names it"),
    ),
    flag(
        &["sentence-avg"],
        Nothing,
        Fairseq,
        Look("each loss term is divided by its own global count: tokens or sentences, as the task says"),
    ),
    // Optimizer and schedule.
    flag(&["optimizer"], Value, Both, Joins("`optim.name`; their adam decays weights as AdamW does")),
    flag(&["lr", "learning-rate"], Value, Both, Joins("`optim.lr`; a list is one rate per epoch")),
    flag(&["lr-scheduler"], Value, Both, Joins(SCHEDULE)),
    flag(&["warmup-updates", "total-num-update"], Count, Both, Joins(SCHEDULE)),
    flag(&["end-learning-rate", "power"], Value, Both, Joins(POLYNOMIAL)),
    flag(&["max-lr"], Value, Fairseq, Joins(COSINE)),
    flag(&["lr-period-updates"], Count, Fairseq, Joins(COSINE)),
    flag(&["warmup-init-lr"], Value, Fairseq, Look("warm-up begins at 0 here")),
    flag(&["force-anneal", "fa"], Count, Both, Joins(EPOCHS)),
    flag(&["lr-shrink"], Value, Both, Joins(EPOCHS)),
    flag(
        &["t-mult", "lr-patience", "lr-threshold"],
        Value,
        Fairseq,
        Look("no schedule here starts again or waits for a plateau"),
    ),
    flag(&["clip-norm"], Value, Both, Joins("`optim.clip_norm`; 0 is no clipping")),
    flag(
        &["weight-decay", "wd", "dadelta_weight_decay"],
        Value,
        Both,
        Joins("`optim.weight_decay`; biases and norms never decay here"),
    ),
    flag(&["momentum"], Value, Fairseq, Joins("`optim.momentum`")),
    flag(&["adam-betas"], Value, Both, Joins("`optim.betas`")),
    flag(&["adam-eps", "adadelta_eps"], Value, Both, Joins("`optim.eps`")),
    flag(&["adadelta_rho"], Value, Both, Joins("`optim.rho`")),
    flag(
        &["anneal-eps", "use-old-adam", "adam-no-amsgrad"],
        Nothing,
        Fairseq,
        Unneeded("there is one Adam and one Adadelta here, equal to PyTorch's"),
    ),
    flag(&["adafactor-eps", "clip-threshold", "decay-rate", "beta1"], Value, Fairseq, Joins(ADAFACTOR)),
    flag(&["scale-parameter", "relative-step", "warmup-init"], Nothing, Fairseq, Joins(ADAFACTOR)),
    flag(
        &["use-bmuf", "block-*", "global-sync-iter", "slowmo-*", "localsgd-frequency"],
        Maybe,
        Both,
        Look("every update is one update of all machines; there is no averaging of models that went apart"),
    ),
    // The end.
    flag(&["max-epoch", "me"], Value, Both, Key("run.max_epochs", Kind::Limit)),
    flag(&["max-update", "mu"], Value, Both, Key("run.max_updates", Kind::Limit)),
    flag(&["min-lr", "stop-min-lr"], Value, Both, Key("run.stop_min_lr", Kind::Bound)),
    flag(&["patience"], Value, Fairseq, Key("valid.patience", Kind::Limit)),
    flag(
        &["stop-time-hours"],
        Value,
        Fairseq,
        Look(
            "let the scheduler send a signal before its limit (Slurm: --signal=USR1@120): the run saves, exits with 75 and resumes",
        ),
    ),
    // Validation and checkpoints.
    flag(&["validate-interval", "validate-interval-updates"], Count, Both, Joins("`valid.every`")),
    flag(&["disable-validation"], Nothing, Both, Joins("`valid.every = \"never\"`")),
    flag(
        &["validate-after-updates", "fixed-validation-seed"],
        Value,
        Fairseq,
        Unneeded("validation is cheap, has no randomness, and may begin at once"),
    ),
    flag(&["save-dir"], Value, Both, Key("run.dir", Kind::Text)),
    flag(&["save-interval", "save-interval-updates"], Count, Both, Joins("`checkpoint.every`")),
    flag(&["keep-last-epochs", "keep-interval-updates"], Count, Both, Joins("`checkpoint.keep`")),
    flag(&["no-epoch-checkpoints"], Nothing, Both, Joins("`checkpoint.keep = 1`")),
    flag(
        &["keep-best-checkpoints"],
        Value,
        Fairseq,
        Look("one best checkpoint is kept, beside the newest checkpoint.keep"),
    ),
    flag(
        &["no-save"],
        Nothing,
        Both,
        Joins("`checkpoint.every = \"never\"`; the best, a stop and the end are saved all the same"),
    ),
    flag(
        &["no-last-checkpoints", "no-save-optimizer-state"],
        Nothing,
        Both,
        Unneeded("a checkpoint is always one that the run can go on from exactly"),
    ),
    flag(&["best-checkpoint-metric"], Value, Both, Key("checkpoint.best", Kind::Text)),
    flag(
        &["maximize-best-checkpoint-metric"],
        Nothing,
        Both,
        Unneeded("the task knows which way its metrics are better"),
    ),
    flag(
        &["checkpoint-suffix", "write-checkpoints-asynchronously"],
        Maybe,
        Fairseq,
        Unneeded("checkpoints are complete or absent, and written in the background"),
    ),
    flag(
        &["restore-file"],
        Value,
        Both,
        Look("a .pt file cannot be read; a run goes on from its newest checkpoint by itself, or from --resume PATH"),
    ),
    flag(&["finetune-from-model"], Value, Fairseq, Look(WEIGHTS)),
    flag(&["reset-optimizer"], Nothing, Both, Joins("`--reset optimizer` on the command line")),
    flag(&["reset-lr-scheduler"], Nothing, Both, Joins("`--reset schedule` on the command line")),
    flag(&["reset-dataloader"], Nothing, Both, Joins("`--reset data` on the command line")),
    flag(
        &["reset-meters"],
        Nothing,
        Both,
        Unneeded("a resume goes on with metrics.jsonl; nothing is averaged over it"),
    ),
    flag(
        &["optimizer-overrides"],
        Value,
        Both,
        Joins("the same flag on the command line; or change `optim` in run.toml"),
    ),
    // Where.
    flag(&["distributed-init-method"], Value, Both, Joins(LAUNCH)),
    flag(&["distributed-world-size", "distributed-rank"], Count, Both, Joins(LAUNCH)),
    flag(&["distributed-gpus"], Count, Hetseq, Joins(LAUNCH)),
    flag(&["distributed-port", "distributed-num-procs", "nprocs-per-node"], Count, Fairseq, Joins(LAUNCH)),
    flag(&["device-id", "local_rank"], Value, Both, Unneeded("a process uses all devices that run.devices names")),
    flag(&["cpu"], Nothing, Both, Joins("`run.devices = \"cpu\"`")),
    flag(
        &["distributed-backend", "ddp-backend", "bucket-cap-mb", "distributed-wrapper", "all-gather-list-size"],
        Value,
        Both,
        Unneeded(NETWORK),
    ),
    flag(
        &["distributed-no-spawn", "find-unused-parameters", "fast-stat-sync", "broadcast-buffers", "heartbeat-timeout"],
        Maybe,
        Both,
        Unneeded(NETWORK),
    ),
    flag(
        &["model-parallel-size", "pipeline-*", "zero-sharding", "cpu-offload"],
        Maybe,
        Fairseq,
        Look("every device holds the whole model; memory limits the micro-batch only (batch.micro)"),
    ),
    flag(&["tpu"], Nothing, Fairseq, Look("there is no TPU engine")),
    flag(&["fp16", "memory-efficient-fp16", "bf16", "memory-efficient-bf16", "amp"], Nothing, Both, Look(F32)),
    flag(
        &["fp16-*", "min-loss-scale", "threshold-loss-scale", "on-cpu-convert-precision"],
        Maybe,
        Fairseq,
        Unneeded("there is no loss scale in 32 bits"),
    ),
    flag(&["empty-cache-freq"], Value, Fairseq, Unneeded("the allocator is told once to keep what is freed")),
    // What is seen.
    flag(&["seed"], Value, Both, Key("run.seed", Kind::Count)),
    flag(&["log-interval"], Value, Both, Key("run.log_every", Kind::Limit)),
    flag(
        &["no-progress-bar"],
        Nothing,
        Both,
        Unneeded("a bar is drawn on a terminal only; elsewhere there are plain lines"),
    ),
    flag(&["log-format", "log-file", "tensorboard-logdir", "wandb-project"], Value, Both, Unneeded(SERVICE)),
    flag(&["azureml-logging", "profile"], Nothing, Fairseq, Unneeded(SERVICE)),
    flag(&["quantization-config-path"], Value, Fairseq, Look("there is no quantization")),
];
