//! Suggestions for wrong names: keys, sections, values, tasks, parameters and files. Called by
//! whatever refuses a name; knows the names that other programs use.

use super::renamed;

/// What other programs call our keys and sections.
const SYNONYMS: &[(&str, &str)] = &[
    // Sections first: of two that fit equally well, the first is suggested.
    ("optimizer", "optim"),
    ("optimiser", "optim"),
    ("training", "run"),
    ("train", "run"),
    ("trainer", "run"),
    ("data", "task"),
    ("dataset", "task"),
    ("model", "task"),
    ("validation", "valid"),
    ("evaluation", "valid"),
    ("checkpoints", "checkpoint"),
    ("distributed", "comm"),
    ("learning_rate", "optim.lr"),
    ("learn_rate", "optim.lr"),
    ("base_lr", "optim.lr"),
    ("peak_lr", "optim.lr"),
    ("optimizer", "optim.name"),
    ("weight_decay_rate", "optim.weight_decay"),
    ("wd", "optim.weight_decay"),
    ("adam_eps", "optim.eps"),
    ("epsilon", "optim.eps"),
    ("adam_betas", "optim.betas"),
    ("max_grad_norm", "optim.clip_norm"),
    ("grad_clip", "optim.clip_norm"),
    ("gradient_clip_val", "optim.clip_norm"),
    ("lr_scheduler", "optim.schedule"),
    ("lr_scheduler_type", "optim.schedule"),
    ("scheduler", "optim.schedule"),
    ("warmup", "optim.schedule.warmup_updates"),
    ("warmup_steps", "optim.schedule.warmup_updates"),
    ("num_warmup_steps", "optim.schedule.warmup_updates"),
    ("batch_size", "batch.global"),
    ("train_batch_size", "batch.global"),
    ("global_batch_size", "batch.global"),
    ("micro_batch_size", "batch.micro"),
    ("per_device_train_batch_size", "batch.micro"),
    ("max_sentences", "batch.micro"),
    ("epochs", "run.max_epochs"),
    ("num_epochs", "run.max_epochs"),
    ("num_train_epochs", "run.max_epochs"),
    ("steps", "run.max_updates"),
    ("max_steps", "run.max_updates"),
    ("num_steps", "run.max_updates"),
    ("train_steps", "run.max_updates"),
    ("max_iters", "run.max_updates"),
    ("iterations", "run.max_updates"),
    ("output_dir", "run.dir"),
    ("out_dir", "run.dir"),
    ("save_dir", "run.dir"),
    ("log_dir", "run.dir"),
    ("device", "run.devices"),
    ("gpus", "run.devices"),
    ("fp16", "run.precision"),
    ("bf16", "run.precision"),
    ("mixed_precision", "run.precision"),
    ("dtype", "run.precision"),
    ("num_workers", "run.loader_threads"),
    ("log_interval", "run.log_every"),
    ("logging_steps", "run.log_every"),
    ("random_seed", "run.seed"),
    ("save_every", "checkpoint.every"),
    ("save_steps", "checkpoint.every"),
    ("save_interval", "checkpoint.every"),
    ("save_total_limit", "checkpoint.keep"),
    ("metric_for_best_model", "checkpoint.best"),
    ("eval_every", "valid.every"),
    ("eval_steps", "valid.every"),
    ("eval_interval", "valid.every"),
    ("val_every", "valid.every"),
    ("early_stopping_patience", "valid.patience"),
    ("data_dir", "task.data"),
    ("data_path", "task.data"),
    ("dataset", "task.data"),
    ("pretrained", "task.init"),
    ("model_name_or_path", "task.init"),
    ("max_length", "task.max_seq_length"),
    ("seq_length", "task.max_seq_length"),
];

/// What users call our tasks: the names of the original HetSeq, of data sets and of problems.
const TASK_SYNONYMS: &[(&str, &str)] = &[
    ("mnist", "images"),
    ("cifar10", "images"),
    ("image-classification", "images"),
    ("bert", "bert-pretrain"),
    ("pretrain", "bert-pretrain"),
    ("mlm", "bert-pretrain"),
    ("masked-lm", "bert-pretrain"),
    ("ner", "token-classification"),
    ("BertForTokenClassification", "token-classification"),
    ("BertForELClassification", "entity-linking"),
    ("text-classification", "sequence-classification"),
    ("glue", "sequence-classification"),
    ("translate", "translation"),
    ("nmt", "translation"),
    ("seq2seq", "translation"),
    ("pytorch", "python"),
    ("torch", "python"),
];

/// Below this similarity, two names have nothing in common.
const MIN_SIMILARITY: f64 = 0.5;

/// Names the known name most similar to a wrong one; empty if none is similar.
pub(crate) fn did_you_mean<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(wrong, known).map_or_else(String::new, |(_, name)| format!(" Did you mean `{name}`?"))
}

/// As [`did_you_mean`], for `run.task`.
pub(crate) fn did_you_mean_task<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> String {
    match TASK_SYNONYMS.iter().find(|(name, _)| plain(name) == plain(wrong)) {
        Some((_, task)) => format!(" Did you mean `{task}`?"),
        None => did_you_mean(wrong, known),
    }
}

/// As [`did_you_mean`], for a key of a section, or for a section if `section` is empty. Also finds
/// keys of other sections by the names that other programs use.
fn did_you_mean_key(section: &str, wrong: &str, known: &[&str]) -> String {
    let own = nearest(wrong, known.iter().copied());
    let candidates = SYNONYMS.iter().filter(|(_, target)| is_possible(section, target, known));
    let other = candidates
        .map(|(name, target)| (similarity(wrong, name), *target))
        // The first of equals.
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .filter(|(similarity, _)| *similarity >= 0.7);
    let (target_section, key) = match (own, other) {
        (Some((own, _)), Some((other, target))) if other > own => split_key(target),
        (Some((_, name)), _) => ("", name),
        (None, Some((_, target))) => split_key(target),
        (None, None) => return String::new(),
    };
    match target_section {
        "" => format!(" Did you mean `{key}`?"),
        target if target == section => format!(" Did you mean `{key}`?"),
        target => format!(" Did you mean `{key}` in [{target}]?"),
    }
}

/// Whether a synonym's target may be meant: a key if the wrong name is a key, a section if it is a
/// section. Keys of the task's table differ between tasks.
fn is_possible(section: &str, target: &str, known: &[&str]) -> bool {
    let (target_section, key) = split_key(target);
    match section {
        "" => target_section.is_empty() || !known.contains(&target),
        "task" if target_section == "task" => known.contains(&key),
        _ => !target_section.is_empty(),
    }
}

/// Section and key of `optim.schedule.kind`: `optim.schedule` and `kind`.
fn split_key(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}

/// The most similar of the known names, with its similarity.
pub(super) fn nearest<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> Option<(f64, &'a str)> {
    known
        .map(|name| (similarity(wrong, name), name))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|a, b| a.0.total_cmp(&b.0))
}

/// From 0 to 1. A name of which the wrong one is the beginning or a word is similar.
fn similarity(wrong: &str, name: &str) -> f64 {
    let (typed, words) = (wrong.to_lowercase(), name.to_lowercase());
    let (wrong, name) = (plain(wrong), plain(name));
    // Signs between words count half: `hots` is rather `host` than `host_s`.
    let edited = |a: &str, b: &str| strsim::normalized_damerau_levenshtein(a, b);
    let edited = if wrong == name { 1.0 } else { (edited(&wrong, &name) + edited(&typed, &words)) / 2.0 };
    let part = if wrong.len() >= 3 && name.starts_with(&wrong) {
        0.8
    } else if wrong.len() >= 3 && words.split(['-', '_']).any(|word| word == wrong) {
        0.7
    } else {
        0.0
    };
    edited.max(part)
}

/// Without what is often written differently: case, and the sign between words.
fn plain(name: &str) -> String {
    name.chars().filter(|letter| !matches!(letter, '-' | '_' | ' ')).flat_map(char::to_lowercase).collect()
}

/// Rewrites an error of serde at `path`, such as `optim.lr`: names the key and the most similar
/// valid name, and describes types in plain words.
pub fn suggest(path: &str, message: &str) -> String {
    let message = message.trim_end();
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let kind = ["field", "variant"].into_iter().find(|kind| message.starts_with(&format!("unknown {kind} `")));
    let at = if path == "." { String::new() } else { format!("{path}: ") };
    let (Some(kind), [wrong, known @ ..]) = (kind, &quoted[..]) else {
        let message = message.replace("missing field", "missing key or section");
        let integers = ["expected u64", "expected u32", "expected usize"].iter();
        let message = integers.fold(message, |message, rust| message.replace(rust, "expected an integer"));
        let others = [
            ("expected f64", "expected a number"),
            ("expected f32", "expected a number"),
            ("expected a boolean", "expected true or false, without quotes"),
            ("expected an array of length 2", "expected two numbers in brackets, such as [1, 2]"),
            ("expected a sequence", "expected a list in brackets"),
        ];
        let message = others.iter().fold(message, |message, (rust, plain)| message.replace(rust, plain));
        return format!("{at}{message}");
    };
    let known: Vec<&str> = known.iter().copied().filter(|name| !renamed::is_old(name)).collect();
    match kind {
        "field" => {
            let section = path.strip_suffix(wrong).unwrap_or(path).trim_end_matches('.');
            let hint = did_you_mean_key(section, wrong, &known);
            let known_in =
                if section.is_empty() { "Known sections".to_owned() } else { format!("Keys of [{section}]") };
            format!("unknown key `{wrong}`.{hint} {known_in}: {}", known.join(", "))
        }
        _ => {
            let hint = did_you_mean(wrong, known.iter().copied());
            format!("{at}unknown value `{wrong}`.{hint} Possible values: {}", known.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::task::Tasks;
    use crate::tasks::bert::BertTaskConfig;

    /// The error for a config with this one key.
    fn error_at(key: &str) -> String {
        let (section, key) = split_key(key);
        let text = match section {
            "" => format!("[{key}]\n"),
            section => format!("[{section}]\n{key} = []\n"),
        };
        toml::from_str::<Config<BertTaskConfig>>(&text).map(drop).map_err(|error| error.to_string()).unwrap_err()
    }

    #[test]
    fn each_synonym_is_of_a_key_or_task_that_exists() {
        assert!(error_at("optim.lrr").contains("unknown field") && error_at("optimum").contains("unknown field"));
        for (name, target) in SYNONYMS {
            let error = error_at(target);
            assert!(!error.contains("unknown field"), "{name} -> {target}: {error}");
        }
        let tasks = Tasks::builtin().names();
        for (name, target) in TASK_SYNONYMS {
            assert!(tasks.contains(target) && !tasks.contains(name), "{name} -> {target}");
        }
    }

    #[test]
    fn keys_are_found_by_similarity_and_by_the_names_of_other_programs() {
        let optim = ["name", "lr", "clip_norm", "schedule", "betas", "eps", "weight_decay", "decay_rate"];
        let sections = ["run", "task", "batch", "optim", "valid", "checkpoint", "comm"];
        let run = ["task", "dir", "max_updates", "max_epochs", "devices"];
        for (section, wrong, known, expected) in [
            ("optim", "lrr", &optim[..], "`lr`?"),
            ("optim", "learning_rate", &optim, "`lr`?"),
            ("optim", "learnrate", &optim, "`lr`?"),
            ("optim", "LearningRate", &optim, "`lr`?"),
            ("optim", "max_grad_norm", &optim, "`clip_norm`?"),
            ("optim", "warmup_steps", &optim, "`warmup_updates` in [optim.schedule]?"),
            ("optim", "wieght_decay", &optim, "`weight_decay`?"),
            ("optim", "batch_size", &optim, "`global` in [batch]?"),
            ("run", "epochs", &run, "`max_epochs`?"),
            ("run", "max_epoch", &run, "`max_epochs`?"),
            ("run", "max_steps", &run, "`max_updates`?"),
            ("run", "learning_rate", &run, "`lr` in [optim]?"),
            ("run", "save_every", &run, "`every` in [checkpoint]?"),
            ("run", "output_dir", &run, "`dir`?"),
            ("task", "data_dir", &["train", "valid"], ""),
            ("task", "data_dir", &["data"], "`data`?"),
            ("", "optimizer", &sections, "`optim`?"),
            ("", "learning_rate", &sections, "`lr` in [optim]?"),
            ("", "checkpoints", &sections, "`checkpoint`?"),
            ("", "zzzzzz", &sections, ""),
        ] {
            let hint = did_you_mean_key(section, wrong, known);
            assert_eq!(hint.trim_start_matches(" Did you mean "), expected, "[{section}] {wrong}");
        }
    }

    #[test]
    fn tasks_are_found_by_their_beginning_and_by_other_names() {
        for (wrong, expected) in [
            ("image", "images"),
            ("bert", "bert-pretrain"),
            ("Translation", "translation"),
            ("mnist", "images"),
            ("bert_pretrain", "bert-pretrain"),
            ("classification", "token-classification"),
        ] {
            let tasks = Tasks::builtin().names();
            let hint = did_you_mean_task(wrong, tasks.into_iter());
            let is_classification = wrong == "classification" && hint.contains("-classification`");
            assert!(hint.contains(&format!("`{expected}`")) || is_classification, "{wrong}: {hint}");
        }
        assert_eq!(did_you_mean_task("xyzzy", Tasks::builtin().names().into_iter()), "");
    }
}
