//! Their optimizers and schedules as ours. The one place that knows how the two differ: names, defaults that nobody
//! types, and what a list of learning rates means.

use super::command::Given;
use super::numbers::{self, float};
use super::translate::Translation;

pub(super) fn optim(given: &Given, to: &mut Translation) {
    optimizer(given, to);
    let rates = rates(given, to);
    let first = rates.first().copied().unwrap_or(0.25);
    let how = if given.has("lr") { "--lr" } else { "their default" };
    to.set("optim.lr", float(first), how);
    schedule(given, &rates, to);
    clipping(given, to);
}

fn number(given: &Given, name: &str, to: &mut Translation) -> Option<f64> {
    let text = given.value(name)?;
    let number = numbers::one(text);
    if number.is_none() {
        to.doubt(format!("--{name} {text}"), "is not a number; it was left out");
    }
    number
}

fn rates(given: &Given, to: &mut Translation) -> Vec<f64> {
    let Some(text) = given.value("lr") else { return Vec::new() };
    numbers::list(text).unwrap_or_else(|| {
        to.doubt(format!("--lr {text}"), "is not a number; set optim.lr");
        Vec::new()
    })
}

fn optimizer(given: &Given, to: &mut Translation) {
    let default = if given.is_fairseq { "nag" } else { "adam" };
    let theirs = given.value("optimizer").unwrap_or(default);
    let mut why =
        if given.has("optimizer") { format!("--optimizer {theirs}") } else { format!("{theirs} is their default") };
    let decay = number(given, "weight-decay", to).filter(|&decay| decay > 0.0);
    let ours = match theirs {
        "adam" | "cpu_adam" if decay.is_some() => {
            why += ", whose weight decay is AdamW's";
            "adamw"
        }
        "adam" | "cpu_adam" => "adam",
        "nag" | "sgd" => "sgd",
        "adadelta" => "adadelta",
        "lamb" => "lamb",
        "adafactor" => "adafactor",
        other => {
            to.doubt(format!("--optimizer {other}"), "is not here; adamw is written, which is the nearest to most");
            "adamw"
        }
    };
    to.set_text("optim.name", ours, why);
    match theirs {
        "nag" | "sgd" => {
            let default = if theirs == "nag" { 0.99 } else { 0.0 };
            let momentum = number(given, "momentum", to);
            to.set("optim.momentum", float(momentum.unwrap_or(default)), "--momentum, or their default");
            if theirs == "nag" {
                to.set("optim.nesterov", "true".to_owned(), "nag is Nesterov's");
            }
        }
        "adam" | "cpu_adam" | "lamb" => {
            if let Some(text) = given.value("adam-betas") {
                match numbers::list(text).as_deref() {
                    Some([first, second]) => {
                        to.set("optim.betas", format!("[{}, {}]", float(*first), float(*second)), "--adam-betas");
                    }
                    _ => to.doubt(format!("--adam-betas {text}"), "are not two numbers; they were left out"),
                }
            }
        }
        "adadelta" => {
            if let Some(rho) = number(given, "adadelta-rho", to) {
                to.set("optim.rho", float(rho), "--adadelta-rho");
            }
        }
        "adafactor" => adafactor(given, to),
        _ => {}
    }
    if let Some(eps) = number(given, "adam-eps", to) {
        to.set("optim.eps", float(eps), "as theirs");
    }
    if let Some(decay) = decay {
        to.set("optim.weight_decay", float(decay), "--weight-decay; biases and norms never decay here");
    }
}

fn adafactor(given: &Given, to: &mut Translation) {
    for (theirs, ours) in [("clip-threshold", "clip_threshold"), ("decay-rate", "decay_rate"), ("beta1", "beta1")] {
        if let Some(value) = number(given, theirs, to) {
            to.set(&format!("optim.{ours}"), float(value), format!("--{theirs}"));
        }
    }
    if let Some([first, second]) = given.value("adafactor-eps").and_then(numbers::list).as_deref() {
        to.set("optim.eps", format!("[{}, {}]", float(*first), float(*second)), "--adafactor-eps");
    }
    // Off unless typed there, on unless set here.
    for (theirs, ours) in
        [("scale-parameter", "scale_parameter"), ("relative-step", "relative_step"), ("warmup-init", "warmup_init")]
    {
        to.set(&format!("optim.{ours}"), given.has(theirs).to_string(), format!("--{theirs}"));
    }
}

fn schedule(given: &Given, rates: &[f64], to: &mut Translation) {
    let default = if given.is_fairseq { "fixed" } else { "PolynomialDecayScheduler" };
    let theirs = given.value("lr-scheduler").unwrap_or(default);
    let why = if given.has("lr-scheduler") {
        format!("--lr-scheduler {theirs}")
    } else {
        format!("{theirs} is their default")
    };
    let warmup = given.value("warmup-updates").and_then(numbers::whole).filter(|&updates| updates > 0);
    let mut table: Vec<String> = warmup.iter().map(|updates| format!("warmup_updates = {updates}")).collect();
    let kind = match theirs {
        "PolynomialDecayScheduler" | "polynomial_decay" => {
            let total = given.value("total-num-update").and_then(numbers::whole).unwrap_or(1_000_000);
            table.push(format!("total_updates = {total}"));
            for (theirs, ours, default) in [("end-learning-rate", "end_lr", 0.0), ("power", "power", 1.0)] {
                if let Some(value) = number(given, theirs, to).filter(|value| *value != default) {
                    table.push(format!("{ours} = {}", float(value)));
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
        "fixed" if rates.len() > 1 || given.has("force-anneal") => return rate_per_epoch(given, rates, table, why, to),
        "fixed" => "constant",
        other => {
            to.doubt(
                format!("--lr-scheduler {other}"),
                "is not here; the rate is constant until you choose another optim.schedule",
            );
            "constant"
        }
    };
    if rates.len() > 1 {
        to.doubt("--lr with several rates", format!("the first is used: {theirs} takes one"));
    }
    if let Some(typed) = given.typed("force-anneal").or(given.typed("lr-shrink")).filter(|_| theirs != "fixed") {
        to.doubt(typed.shown.clone(), "only --lr-scheduler fixed shrinks its rate here");
    }
    let value = match (table.is_empty(), kind) {
        (true, kind) => format!("\"{kind}\""),
        (false, kind) => format!("{{ kind = \"{kind}\", {} }}", table.join(", ")),
    };
    to.set("optim.schedule", value, why);
}

/// Theirs goes up to `--max-lr` and comes down to `--lr`, again and again; ours comes down once.
fn cosine(given: &Given, rates: &[f64], warmup: i64, table: &mut Vec<String>, to: &mut Translation) {
    if let Some(high) = number(given, "max-lr", to) {
        to.set("optim.lr", float(high), "--max-lr");
        table.extend(
            rates.first().filter(|low| **low > 0.0 && **low < high).map(|low| format!("end_lr = {}", float(*low))),
        );
    }
    if let Some(period) = given.value("lr-period-updates").and_then(numbers::whole).filter(|&period| period > 0) {
        table.push(format!("total_updates = {}", warmup + period));
        to.doubt(
            format!("--lr-period-updates {period}"),
            "the cosine comes down once and stays there; it does not start again",
        );
    }
}

/// One rate per epoch; the last one stays, or shrinks from an epoch on.
fn rate_per_epoch(given: &Given, rates: &[f64], mut table: Vec<String>, why: String, to: &mut Translation) {
    if rates.len() > 1 {
        let list: Vec<String> = rates.iter().map(|rate| float(*rate)).collect();
        to.set("optim.lr", format!("[{}]", list.join(", ")), "--lr: a rate per epoch, the last one stays");
    }
    if let Some(from) = given.value("force-anneal").and_then(numbers::whole).filter(|&from| from > 0) {
        let shrink = number(given, "lr-shrink", to).unwrap_or(0.1);
        table.push(format!("shrink = {}, shrink_from_epoch = {from}", float(shrink)));
    }
    table.insert(0, "kind = \"epochs\"".to_owned());
    to.set("optim.schedule", format!("{{ {} }}", table.join(", ")), why);
}

fn clipping(given: &Given, to: &mut Translation) {
    match number(given, "clip-norm", to) {
        Some(norm) if norm > 0.0 => to.set("optim.clip_norm", float(norm), "--clip-norm"),
        Some(_) => {}
        None if given.is_fairseq => {
            to.doubt(
                "--clip-norm",
                "was not given: fairseq 0.9 then clips at 25, 0.10 does not, and here nothing is clipped",
            );
        }
        None => to.set("optim.clip_norm", float(25.0), "their default"),
    }
}
