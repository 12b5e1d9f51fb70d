//! Defaults and meanings of the keys in all sections but `[task]`, in the order of the reference.

use super::KeyRow;

pub(super) const SECTIONS: [(&str, &[KeyRow]); 10] = [
    ("run", &RUN),
    ("batch", &BATCH),
    ("optim", &OPTIM),
    ("optim.schedule", &SCHEDULE),
    ("valid", &VALID),
    ("checkpoint", &CHECKPOINT),
    ("comm", &COMM),
    ("elastic", &ELASTIC),
    ("emulate", &EMULATE),
    ("debug", &DEBUG),
];

const RUN: [KeyRow; 16] = [
    (
        "task",
        "required",
        "what to train: a built-in task (`images`, `bert-pretrain`, `token-classification`, `sequence-classification`, `entity-linking`, `translation`, `synthetic-bert`), `python`, or a task of your own program",
    ),
    (
        "dir",
        "`runs/` and the name of the config file",
        "where rank 0 writes checkpoints and metrics; on several machines, share it if you can",
    ),
    ("seed", "`1`", "seed of everything random"),
    ("max_updates", "none", "last update of the run; set this, `max_epochs` or both"),
    ("max_epochs", "none", "last epoch of the run"),
    ("stop_min_lr", "none", "stop early when the learning rate, after warm-up, has fallen to this value or below"),
    (
        "devices",
        "`\"all\"`",
        "this machine's devices: `\"cpu\"`, `\"cpu:4\"`, `\"gpu:0\"`, `\"gpu:0,cpu:2\"`, `\"torch:cuda:0\"`, ...; `hetseq devices` lists them",
    ),
    (
        "precision",
        "`\"f32\"`",
        "precision of matrix products: `\"f32\"`, `\"f16\"`, `\"bf16\"`, or `\"auto\"` for what each device supports",
    ),
    ("python", "`python3`", "the Python interpreter for devices such as `torch:cuda:0` and for Python tasks"),
    ("log_every", "`50`", "updates per log line if there is no terminal"),
    (
        "loader_threads",
        "spare cores",
        "threads that read and prepare samples; at least 1, by default at most 16. For a Python task each is a process",
    ),
    (
        "prefetch",
        "`1`",
        "updates loaded ahead; each needs memory for its samples, and its split is decided when it is loaded",
    ),
    (
        "memory_mib",
        "available memory",
        "memory limit of this process; by default the limit of its control group or machine, divided by the ranks that share it",
    ),
    ("gpu_memory_mib", "free memory", "limit for each GPU's own memory; by default what its driver reports as free"),
    (
        "max_bad_updates",
        "`5`",
        "updates in a row that may be skipped because their gradients are infinite or NaN; one more ends the run",
    ),
    ("checksum_every", "`100`", "compare the replicas' parameters every N updates; 0: never"),
];

const BATCH: [KeyRow; 7] = [
    ("global", "required", "samples per update over all machines, or `\"4096 tokens\"`, padding included"),
    ("micro", "measured", "most samples in one forward pass on a device of this machine; the rest is accumulated"),
    ("max_tokens", "measured", "the same limit in tokens, padding included"),
    (
        "split",
        "`\"measured\"`",
        "how an update is split: by measured speed, by `\"weights\"` (`--weight` of each rank), or `\"equal\"`",
    ),
    (
        "probe_s",
        "`20.0`",
        "with `measured`, or with a memory limit: time limit for probing the devices before the first update; 0: learn their speeds from the first updates",
    ),
    ("even_updates", "`0`", "with `measured`: split the first N updates evenly"),
    ("curriculum_epochs", "`0`", "the first N epochs keep the order of the data (short samples first)"),
];

const OPTIM: [KeyRow; 20] = [
    ("name", "required", "`sgd`, `adam`, `adamw`, `adadelta`, `lamb`, `adafactor`"),
    (
        "lr",
        "required, except for `adafactor`",
        "learning rate: a number, or one per epoch, `[0.25, 0.1, 0.05]`, whose last holds for all later epochs",
    ),
    (
        "schedule",
        "`\"constant\"`, or `\"epochs\"` for a list",
        "also `\"polynomial\"`, `\"inverse-sqrt\"`, `\"cosine\"`; or a table, see `optim.schedule`",
    ),
    ("clip_norm", "none", "clip gradients by their global norm"),
    ("weight_decay", "`0.0`", "not applied to biases and norms"),
    ("momentum", "`0.9`", "`sgd`"),
    ("nesterov", "`false`", "`sgd`"),
    ("betas", "`[0.9, 0.999]`", "`adam`, `adamw`, `lamb`"),
    ("eps", "by optimizer", "`adam`, `adamw`: 1e-8; `adadelta`, `lamb`: 1e-6; `adafactor`: `[1e-30, 1e-3]`"),
    ("rho", "0.9", "`adadelta`"),
    ("always_adapt", "false", "`lamb`: adapt parameters without weight decay, too"),
    ("trust_clip", "false", "`lamb`: limit trust ratios to 1"),
    ("clip_threshold", "1.0", "`adafactor`"),
    ("decay_rate", "-0.8", "`adafactor`"),
    ("beta1", "none", "`adafactor`: momentum"),
    ("scale_parameter", "true", "`adafactor`"),
    ("relative_step", "true without `lr`", "`adafactor`: compute the rate itself"),
    ("warmup_init", "false", "`adafactor`: with `relative_step`, start with a small rate"),
    ("layer_decay", "none", "fine-tuning: each layer learns this much slower than the one above it, such as 0.9"),
    (
        "frozen",
        "none",
        "modules or parameters that do not change, by their names in a checkpoint; `*`, `?` and `[0-3]` as in a shell",
    ),
];

const SCHEDULE: [KeyRow; 7] = [
    ("kind", "required", "`constant`, `polynomial`, `inverse-sqrt`, `cosine`, `epochs`"),
    ("warmup_updates", "`0`", "updates of linear warm-up from 0"),
    ("total_updates", "end of the run", "`polynomial`, `cosine`: the update at which decay ends, warm-up included"),
    (
        "end_lr",
        "`0.0`",
        "`polynomial`, `cosine`: learning rate at the end of decay and after it; `inverse-sqrt`: lower bound",
    ),
    ("power", "`1.0`", "`polynomial`: exponent"),
    ("shrink", "none", "`epochs`: factor of the rate in each epoch after the list"),
    ("shrink_from_epoch", "first after the list", "`epochs`: first epoch with a smaller rate, counted from 1"),
];

const VALID: [KeyRow; 2] = [
    ("every", "`\"1 epoch\"`", "also `\"100 updates\"`, `\"never\"`; the end of a run is always validated"),
    ("patience", "none", "stop early after N validations in a row without a new best, by `checkpoint.best`"),
];

const CHECKPOINT: [KeyRow; 4] = [
    ("every", "`\"1 epoch\"`", "also `\"100 updates\"`, `\"never\"`; the best, a stop and the end are always saved"),
    ("keep", "`3`", "number of newest checkpoints to keep, besides the best"),
    ("best", "`\"loss\"`", "or a metric of the task, which defines whether lower or higher is better: `\"accuracy\"`"),
    ("on_error", "`\"continue\"`", "if a checkpoint cannot be written; or `\"stop\"`"),
];

const COMM: [KeyRow; 11] = [
    (
        "transport",
        "`\"tcp\"`",
        "`\"mpi\"`: exchange data over MPI, on sites with a fast network; without `[elastic]`, and only in a program built with the feature `mpi`",
    ),
    (
        "silence_s",
        "`10.0`",
        "network outages shorter than this have no effect. A silent peer counts as lost within `silence_s` + 5 s if all ranks run Linux 6.15 or later, else within twice `silence_s` + 4 s, because TCP of older systems may need as long as the outage lasted to detect its end",
    ),
    ("progress_s", "`1800.0`", "how long a peer may be alive without progress"),
    ("join_s", "`300.0`", "how long to wait for all ranks at the start"),
    ("interface", "all", "network to listen on: the name of an interface, or an address"),
    ("ports", "chosen by the system", "first and last port that ranks may listen on: `[29500, 29510]`"),
    ("encrypt", "`false`", "encrypt all traffic between the ranks"),
    (
        "wire_dtype",
        "`\"f32\"`",
        "dtype of gradients on the network; `\"bf16\"` halves the bytes on a slow network. Sums are still f32, losses exact",
    ),
    (
        "algorithm",
        "`\"auto\"`",
        "`\"direct\"`: send each shard to its owner (what `auto` uses in training: ranks can exchange while others compute); `\"ring\"`: neighbour to neighbour, starts when all ranks have finished",
    ),
    (
        "shard_weight",
        "measured",
        "relative size of the gradient shard that this rank sums: 0 for a host with a slow link. By default it follows from the measured link speeds",
    ),
    ("measure_links", "`true`", "measure the links between the ranks at the start"),
];

const ELASTIC: [KeyRow; 4] = [
    (
        "enabled",
        "`true`",
        "continue without ranks that are lost; `false`: all stop, and the next start resumes from the last checkpoint",
    ),
    ("min_workers", "`1`", "stop, with everything saved, if fewer ranks are left"),
    (
        "start_with",
        "none",
        "start as soon as this many ranks are there, rank 0 included; the others of `WORLD_SIZE` join later",
    ),
    (
        "leave_when",
        "never",
        "`{ command = \"test -e /tmp/busy\", load = 2.0, user = true, after_s = 10, free_s = 300 }`: this machine leaves when one of the conditions has held for `after_s`, and starts again when none has held for `free_s`",
    ),
];

const EMULATE: [KeyRow; 7] = [
    ("slowdown", "`[]`", "`[1, 2, 4]`: slow down each rank by this factor"),
    ("memory_tokens", "`[]`", "`[0, 512]`: on rank 1, micro-batches of more tokens fail as if out of memory"),
    ("lost", "`[]`", "`[{ rank = 1, device = \"gpu:0\", update = 7 }]`: devices that fail in an update"),
    ("hung", "`[]`", "the same form: devices that stop responding in an update"),
    ("not_finite", "`[]`", "the same form: devices whose gradients are NaN in an update"),
    ("overflow", "`[]`", "`[5, 9]`: updates in which `f16` gradients overflow"),
    ("flipped_bit", "`[]`", "`[{ rank = 1, update = 7 }]`: ranks of whose parameters one bit changes after an update"),
];

const DEBUG: [KeyRow; 2] = [
    ("gradients", "`false`", "write the reduced gradient of each update"),
    ("audit", "`false`", "write which rank computed which samples; set it on all ranks"),
];
