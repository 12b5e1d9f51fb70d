//! Their optimizers and schedules as ours. The one place that knows how the two differ: names, defaults that nobody
//! types, and what a list of learning rates means.

use super::command::Given;
use super::numbers::{self, float};
use super::translate::Translation;

pub(super) fn optim(given: &Given, to: &mut Translation) {
    optimizer(given, to);
    if to.get("optim.relative_step") == Some("true") {
        to.doubt("--relative-step", "makes its own rate: --lr and a schedule are left out");
    } else {
        let rates = rates(given, to);
        let how = if given.has("lr") { "--lr" } else { "their default" };
        to.set("optim.lr", float(rates[0]), how);
        schedule(given, &rates, to);
    }
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

/// At least one.
fn rates(given: &Given, to: &mut Translation) -> Vec<f64> {
    let Some(text) = given.value("lr") else { return vec![0.25] };
    numbers::list(text).unwrap_or_else(|| {
        to.doubt(format!("--lr {text}"), "is not a number; set optim.lr");
        vec![0.25]
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
            let momentum = number(given, "momentum", to).unwrap_or(default);
            to.set("optim.momentum", float(momentum), "--momentum, or their default");
            if theirs == "nag" && momentum != 0.0 {
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

fn eps(given: &Given, to: &mut Translation) {
    if let Some(eps) = number(given, "adam-eps", to) {
        to.set("optim.eps", float(eps), "as theirs");
    }
}

fn adafactor(given: &Given, to: &mut Translation) {
    for (theirs, ours) in [("clip-threshold", "clip_threshold"), ("decay-rate", "decay_rate"), ("beta1", "beta1")] {
        if let Some(value) = number(given, theirs, to) {
            to.set(&format!("optim.{ours}"), float(value), format!("--{theirs}"));
        }
    }
    if let Some(text) = given.value("adafactor-eps") {
        match numbers::list(text).as_deref() {
            Some([first, second]) => {
                to.set("optim.eps", format!("[{}, {}]", float(*first), float(*second)), "--adafactor-eps");
            }
            _ => to.doubt(format!("--adafactor-eps {text}"), "are not two numbers; they were left out"),
        }
    }
    // Off unless typed there, on unless set here.
    let is_relative = given.has("relative-step");
    for (theirs, ours, is_on) in [
        ("scale-parameter", "scale_parameter", given.has("scale-parameter")),
        ("relative-step", "relative_step", is_relative),
        ("warmup-init", "warmup_init", is_relative && given.has("warmup-init")),
    ] {
        to.set(&format!("optim.{ours}"), is_on.to_string(), format!("--{theirs}"));
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
    let mut rates = rates.to_vec();
    if let Some(from) = given.value("force-anneal").and_then(numbers::whole).filter(|&from| from > 0) {
        let shrink = number(given, "lr-shrink", to).unwrap_or(0.1);
        table.push(format!("shrink = {}", float(shrink)));
        // Theirs may begin to shrink before the list is at its end, ours begins after it.
        if from as usize > rates.len() {
            table.push(format!("shrink_from_epoch = {from}"));
        } else if let Some(last) = rates.last().copied() {
            rates.truncate(from as usize - 1);
            rates.push(last * shrink);
        }
    }
    let list: Vec<String> = rates.iter().map(|rate| float(*rate)).collect();
    let value = if let [one] = &list[..] { one.clone() } else { format!("[{}]", list.join(", ")) };
    to.set("optim.lr", value, "--lr: a rate per epoch, the last one stays or shrinks");
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
