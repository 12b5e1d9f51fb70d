//! Converts optimizers and schedules of the old programs. Handles the differences in names, in
//! defaults that a command line does not show, and in the meaning of several learning rates.

use super::command::GivenFlags;
use super::convert::Converted;
use super::numbers::{self, float};

pub(super) fn optim(given: &GivenFlags, to: &mut Converted) {
    optimizer(given, to);
    if to.get("optim.relative_step") == Some("true") {
        to.warn("--relative-step", "computes its own learning rate: --lr and the schedule were ignored");
    } else {
        let rates = rates(given, to);
        let reason = if given.has("lr") { "--lr" } else { "the old default" };
        to.set("optim.lr", float(rates[0]), reason);
        schedule(given, &rates, to);
    }
    clipping(given, to);
}

fn number(given: &GivenFlags, name: &str, to: &mut Converted) -> Option<f64> {
    let text = given.value(name)?;
    let number = numbers::one(text);
    if number.is_none() {
        to.warn(format!("--{name} {text}"), "is not a number and was ignored");
    }
    number
}

/// The learning rates, at least one.
fn rates(given: &GivenFlags, to: &mut Converted) -> Vec<f64> {
    let Some(text) = given.value("lr") else { return vec![0.25] };
    numbers::list(text).unwrap_or_else(|| {
        to.warn(format!("--lr {text}"), "is not a number; set optim.lr");
        vec![0.25]
    })
}

fn optimizer(given: &GivenFlags, to: &mut Converted) {
    let default = if given.is_fairseq { "nag" } else { "adam" };
    let old = given.value("optimizer").unwrap_or(default);
    let mut reason =
        if given.has("optimizer") { format!("--optimizer {old}") } else { format!("{old} is the old default") };
    let decay = number(given, "weight-decay", to).filter(|&decay| decay > 0.0);
    let new = match old {
        "adam" | "cpu_adam" if decay.is_some() => {
            reason += ", whose weight decay is that of AdamW";
            "adamw"
        }
        "adam" | "cpu_adam" => "adam",
        "nag" | "sgd" => "sgd",
        "adadelta" => "adadelta",
        "lamb" => "lamb",
        "adafactor" => "adafactor",
        other => {
            to.warn(format!("--optimizer {other}"), "is not supported; adamw is used instead");
            "adamw"
        }
    };
    to.set_text("optim.name", new, reason);
    match old {
        "nag" | "sgd" => {
            let default = if old == "nag" { 0.99 } else { 0.0 };
            let momentum = number(given, "momentum", to).unwrap_or(default);
            to.set("optim.momentum", float(momentum), "--momentum, else the old default");
            if old == "nag" && momentum != 0.0 {
                to.set("optim.nesterov", "true".to_owned(), "nag is Nesterov momentum");
            }
        }
        "adam" | "cpu_adam" | "lamb" => {
            if let Some(text) = given.value("adam-betas") {
                match numbers::list(text).as_deref() {
                    Some([first, second]) => {
                        to.set("optim.betas", format!("[{}, {}]", float(*first), float(*second)), "--adam-betas");
                    }
                    _ => to.warn(format!("--adam-betas {text}"), "is not a pair of numbers and was ignored"),
                }
            }
            eps(given, to);
        }
        "adadelta" => {
            eps(given, to);
            if let Some(rho) = number(given, "adadelta-rho", to) {
                to.set("optim.rho", float(rho), "--adadelta-rho");
            }
        }
        "adafactor" => adafactor(given, to),
        _ => {}
    }
    if let Some(decay) = decay {
        to.set("optim.weight_decay", float(decay), "--weight-decay; biases and norms never decay here");
    }
}

fn eps(given: &GivenFlags, to: &mut Converted) {
    if let Some(eps) = number(given, "adam-eps", to) {
        to.set("optim.eps", float(eps), "--adam-eps or --adadelta-eps");
    }
}

fn adafactor(given: &GivenFlags, to: &mut Converted) {
    for (flag, key) in [("clip-threshold", "clip_threshold"), ("decay-rate", "decay_rate"), ("beta1", "beta1")] {
        if let Some(value) = number(given, flag, to) {
            to.set(&format!("optim.{key}"), float(value), format!("--{flag}"));
        }
    }
    if let Some(text) = given.value("adafactor-eps") {
        match numbers::list(text).as_deref() {
            Some([first, second]) => {
                to.set("optim.eps", format!("[{}, {}]", float(*first), float(*second)), "--adafactor-eps");
            }
            _ => to.warn(format!("--adafactor-eps {text}"), "is not a pair of numbers and was ignored"),
        }
    }
    // In fairseq these are off by default, here they are on by default.
    let is_relative = given.has("relative-step");
    for (flag, key, is_on) in [
        ("scale-parameter", "scale_parameter", given.has("scale-parameter")),
        ("relative-step", "relative_step", is_relative),
        ("warmup-init", "warmup_init", is_relative && given.has("warmup-init")),
    ] {
        to.set(&format!("optim.{key}"), is_on.to_string(), format!("--{flag}"));
    }
}

fn schedule(given: &GivenFlags, rates: &[f64], to: &mut Converted) {
    let default = if given.is_fairseq { "fixed" } else { "PolynomialDecayScheduler" };
    let old = given.value("lr-scheduler").unwrap_or(default);
    let reason =
        if given.has("lr-scheduler") { format!("--lr-scheduler {old}") } else { format!("{old} is the old default") };
    let warmup = given.value("warmup-updates").and_then(numbers::integer).filter(|&updates| updates > 0);
    let mut table: Vec<String> = warmup.iter().map(|updates| format!("warmup_updates = {updates}")).collect();
    let kind = match old {
        "PolynomialDecayScheduler" | "polynomial_decay" => {
            let total = given.value("total-num-update").and_then(numbers::integer).unwrap_or(1_000_000);
            table.push(format!("total_updates = {total}"));
            for (flag, key, default) in [("end-learning-rate", "end_lr", 0.0), ("power", "power", 1.0)] {
                if let Some(value) = number(given, flag, to).filter(|value| *value != default) {
                    table.push(format!("{key} = {}", float(value)));
                }
            }
            "polynomial"
        }
        "inverse_sqrt" => {
            if warmup.is_none() {
                table.push("warmup_updates = 4000".to_owned());
            }
            "inverse-sqrt"
        }
        "cosine" => {
            cosine(given, rates, warmup.unwrap_or(0), &mut table, to);
            "cosine"
        }
        "fixed" if rates.len() > 1 || given.has("force-anneal") => {
            return rate_per_epoch(given, rates, table, reason, to);
        }
        "fixed" => "constant",
        other => {
            to.warn(
                format!("--lr-scheduler {other}"),
                "is not supported; the learning rate is constant unless you set another optim.schedule",
            );
            "constant"
        }
    };
    if rates.len() > 1 {
        to.warn("--lr with several rates", format!("only the first is used: {old} takes one"));
    }
    let value = match (table.is_empty(), kind) {
        (true, kind) => format!("\"{kind}\""),
        (false, kind) => format!("{{ kind = \"{kind}\", {} }}", table.join(", ")),
    };
    to.set("optim.schedule", value, reason);
}

/// The cosine schedule. In fairseq it rises to `--max-lr` and falls to `--lr` repeatedly; here it
/// falls once.
fn cosine(given: &GivenFlags, rates: &[f64], warmup: i64, table: &mut Vec<String>, to: &mut Converted) {
    if let Some(high) = number(given, "max-lr", to) {
        to.set("optim.lr", float(high), "--max-lr");
        table.extend(
            rates.first().filter(|low| **low > 0.0 && **low < high).map(|low| format!("end_lr = {}", float(*low))),
        );
    }
    if let Some(period) = given.value("lr-period-updates").and_then(numbers::integer).filter(|&period| period > 0) {
        table.push(format!("total_updates = {}", warmup + period));
        to.warn(format!("--lr-period-updates {period}"), "the cosine falls once and stays there; it does not restart");
    }
}

/// One learning rate per epoch; the last one stays, or shrinks from an epoch on.
fn rate_per_epoch(given: &GivenFlags, rates: &[f64], mut table: Vec<String>, reason: String, to: &mut Converted) {
    let mut rates = rates.to_vec();
    if let Some(from) = given.value("force-anneal").and_then(numbers::integer).filter(|&from| from > 0) {
        let shrink = number(given, "lr-shrink", to).unwrap_or(0.1);
        table.push(format!("shrink = {}", float(shrink)));
        // The old programs may start to shrink before the end of the list; `shrink_from_epoch` must
        // be after it.
        if from as usize > rates.len() {
            table.push(format!("shrink_from_epoch = {from}"));
        } else if let Some(last) = rates.last().copied() {
            rates.truncate(from as usize - 1);
            rates.push(last * shrink);
        }
    }
    let list: Vec<String> = rates.iter().map(|rate| float(*rate)).collect();
    let value = if let [one] = &list[..] { one.clone() } else { format!("[{}]", list.join(", ")) };
    to.set("optim.lr", value, "--lr: one rate per epoch, the last one stays or shrinks");
    table.insert(0, "kind = \"epochs\"".to_owned());
    to.set("optim.schedule", format!("{{ {} }}", table.join(", ")), reason);
}

fn clipping(given: &GivenFlags, to: &mut Converted) {
    match number(given, "clip-norm", to) {
        Some(norm) if norm > 0.0 => to.set("optim.clip_norm", float(norm), "--clip-norm"),
        Some(_) => {}
        None if given.is_fairseq => {
            to.warn(
                "--clip-norm",
                "was not given: fairseq 0.9 then clips at 25, fairseq 0.10 and this run do not clip",
            );
        }
        None => to.set("optim.clip_norm", float(25.0), "the old default"),
    }
}
