//! Learning-rate schedules: pure functions of the configuration and the position of the run.
//!
//! There is no schedule object and no state to save: a resumed run evaluates the same function. The
//! trainer calls [`lr`] once per update, and rank 0 sends the result as bits to the other ranks.
//!
//! `epochs` equals fairseq's `fixed`, except for the warm-up. The other curves equal those of
//! Hugging Face `transformers.optimization`, including the warm-up. Warm-up starts from 0, so
//! **update 0 of a run with warm-up changes nothing but the optimizer's state**, and update
//! `warmup_updates` is the first one with the full rate.

use std::f64::consts::PI;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::OptimError;

/// The shape of the curve after warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// Always the base rate (`get_constant_schedule_with_warmup`).
    #[default]
    Constant,
    /// From the base rate to `end_lr` as `(1 - progress)^power`; a straight line by default
    /// (`get_polynomial_decay_schedule_with_warmup`).
    Polynomial,
    /// As `1 / sqrt(update)`, continuous at the end of warm-up (`get_inverse_sqrt_schedule`, whose
    /// time scale is the length of warm-up, or 10,000 updates without warm-up). Has no end;
    /// `end_lr` is the lower bound.
    InverseSqrt,
    /// Half a cosine from the base rate to `end_lr` (`get_cosine_schedule_with_warmup`, and
    /// `get_cosine_with_min_lr_schedule_with_warmup` if `end_lr` is not 0).
    Cosine,
    /// One rate per epoch: the n-th entry of `lr` in epoch n, and the last entry in all later
    /// epochs, optionally shrunk (`--lr-scheduler fixed` of fairseq, with `--lr-shrink` and
    /// `--force-anneal`). Has no end.
    Epochs,
}

/// `lr = 0.1`, or one rate per epoch: `lr = [0.25, 0.1, 0.05]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "`lr` must be a number, or a list of numbers, one per epoch: [0.25, 0.1]")]
pub enum BaseRate {
    Constant(f64),
    PerEpoch(Vec<f64>),
}

impl BaseRate {
    /// All rates.
    pub fn rates(&self) -> &[f64] {
        match self {
            BaseRate::Constant(rate) => std::slice::from_ref(rate),
            BaseRate::PerEpoch(rates) => rates,
        }
    }

    /// The rate in `epoch`, counted from 0; 0 for an empty list, which is never valid.
    fn at(&self, epoch: u64) -> f64 {
        let rates = self.rates();
        let index = usize::try_from(epoch).unwrap_or(usize::MAX).min(rates.len().saturating_sub(1));
        rates.get(index).copied().unwrap_or(0.0)
    }
}

/// The position of a run; both numbers count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The next update.
    pub update: u64,
    /// The epoch of that update.
    pub epoch: u64,
}

/// The settings of a learning-rate schedule.
///
/// In TOML either only the name, `schedule = "cosine"`, or a table:
///
/// ```toml
/// [schedule]
/// kind = "polynomial"
/// warmup_updates = 10_000
/// end_lr = 1e-7
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ScheduleConfig {
    pub kind: ScheduleKind,
    /// Updates of linear warm-up from 0.
    pub warmup_updates: u64,
    /// The update at which decay ends, warm-up included; by default the last update of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_updates: Option<u64>,
    /// The learning rate at the end of decay and after it.
    pub end_lr: f64,
    /// The exponent of `polynomial`.
    pub power: f64,
    /// `epochs`: multiplies the rate in each epoch after the list, or from `shrink_from_epoch` on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shrink: Option<f64>,
    /// The first epoch whose rate is shrunk, counted from 1; by default the first one after the
    /// list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shrink_from_epoch: Option<u64>,
}

impl Default for ScheduleConfig {
    fn default() -> ScheduleConfig {
        ScheduleConfig {
            kind: ScheduleKind::default(),
            warmup_updates: 0,
            total_updates: None,
            end_lr: 0.0,
            power: 1.0,
            shrink: None,
            shrink_from_epoch: None,
        }
    }
}

impl ScheduleConfig {
    /// Refuses invalid values, and settings that the chosen kind would silently ignore.
    pub fn validate(&self, base: &BaseRate) -> Result<(), OptimError> {
        if let Some(rate) = base.rates().iter().find(|rate| !(rate.is_finite() && **rate >= 0.0)) {
            return refuse("lr", rate, "a finite number that is not negative");
        }
        if base.rates().is_empty() {
            return refuse("lr", "an empty list", "a number, or a list with one rate per epoch");
        }
        if matches!(base, BaseRate::PerEpoch(_)) && self.kind != ScheduleKind::Epochs {
            let rule = "one number for this schedule; a list of one rate per epoch needs kind = \"epochs\"";
            return refuse("lr", "a list", rule);
        }
        self.validate_end(base.at(0))?;
        self.validate_shrinking(base)
    }

    fn validate_end(&self, base_lr: f64) -> Result<(), OptimError> {
        let ends = matches!(self.kind, ScheduleKind::Polynomial | ScheduleKind::InverseSqrt | ScheduleKind::Cosine);
        if !(self.end_lr >= 0.0 && self.end_lr <= base_lr) {
            return refuse("end_lr", self.end_lr, &format!("between 0 and the base learning rate, {base_lr}"));
        }
        if !ends && self.end_lr != 0.0 {
            return refuse("end_lr", self.end_lr, "left out for the constant schedule and for epochs");
        }
        if !(self.power.is_finite() && self.power > 0.0) {
            return refuse("power", self.power, "a finite number above 0");
        }
        if self.kind != ScheduleKind::Polynomial && self.power != 1.0 {
            return refuse("power", self.power, "left out for all schedules but polynomial");
        }
        match self.total_updates {
            Some(total) if self.kind == ScheduleKind::Epochs => {
                refuse("total_updates", total, "left out for epochs, which have no end")
            }
            _ => Ok(()),
        }
    }

    fn validate_shrinking(&self, base: &BaseRate) -> Result<(), OptimError> {
        let given = [("shrink", self.shrink.is_some()), ("shrink_from_epoch", self.shrink_from_epoch.is_some())];
        if let Some((key, _)) = given.iter().find(|(_, given)| *given && self.kind != ScheduleKind::Epochs) {
            return refuse(key, "set", "left out for all schedules but epochs");
        }
        if let Some(shrink) = self.shrink.filter(|shrink| !(*shrink > 0.0 && *shrink <= 1.0)) {
            return refuse("shrink", shrink, "above 0 and at most 1, such as 0.5");
        }
        match (self.shrink_from_epoch, base.rates().len()) {
            (Some(_), _) if self.shrink.is_none() => {
                refuse("shrink_from_epoch", "set", "left out if `shrink` is not set")
            }
            (Some(from), rates) if from <= rates as u64 => {
                let rule = format!("more than {rates}: until then the rates of `lr` apply");
                refuse("shrink_from_epoch", from, &rule)
            }
            _ => Ok(()),
        }
    }

    /// The rate in `epoch`, counted from 0, before warm-up and decay.
    fn base(&self, base: &BaseRate, epoch: u64) -> f64 {
        let first = self.shrink_from_epoch.unwrap_or(base.rates().len() as u64 + 1).saturating_sub(1);
        match self.shrink {
            Some(shrink) if epoch >= first => base.at(epoch) * libm::pow(shrink, (epoch - first) as f64 + 1.0),
            _ => base.at(epoch),
        }
    }
}

fn refuse(key: &'static str, value: impl fmt::Display, rule: &str) -> Result<(), OptimError> {
    Err(OptimError::Setting { owner: "schedule".into(), key, value: value.to_string(), rule: rule.into() })
}

/// The learning rate of the next update.
///
/// `total_updates` is the length of the run, used if the configuration does not set an end. After
/// the end, polynomial and cosine stay at `end_lr` (in `transformers` the cosine would rise again).
/// A warm-up longer than the run is truncated, not compressed.
pub fn lr(config: &ScheduleConfig, base: &BaseRate, total_updates: u64, at: Position) -> f64 {
    let (warmup, update) = (config.warmup_updates, at.update);
    let base_lr = config.base(base, at.epoch);
    if update < warmup {
        return base_lr * (update as f64 / warmup as f64);
    }
    let end_lr = config.end_lr;
    let progress = progress(warmup, config.total_updates.unwrap_or(total_updates), update);
    // `libm` instead of the standard library, whose functions differ between platforms in the last
    // bit.
    match config.kind {
        ScheduleKind::Constant | ScheduleKind::Epochs => base_lr,
        ScheduleKind::Polynomial => (base_lr - end_lr) * libm::pow(1.0 - progress, config.power) + end_lr,
        ScheduleKind::InverseSqrt => {
            let scale = if warmup == 0 { 10_000 } else { warmup };
            let elapsed = (update - warmup) as f64 + scale as f64;
            (base_lr / (elapsed / scale as f64).sqrt()).max(end_lr)
        }
        ScheduleKind::Cosine => {
            let factor = 0.5 * (1.0 + libm::cos(PI * progress));
            (base_lr - end_lr) * factor + end_lr
        }
    }
}

/// The completed fraction of the decay, from 0 at the end of warm-up to 1 at `total` and after it.
fn progress(warmup: u64, total: u64, update: u64) -> f64 {
    if update >= total {
        return 1.0;
    }
    // Here warmup <= update < total, so the divisor is not 0.
    (update - warmup) as f64 / (total - warmup) as f64
}

impl<'de> Deserialize<'de> for ScheduleConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ScheduleConfig, D::Error> {
        deserializer.deserialize_any(NameOrTable)
    }
}

/// A visitor instead of serde's `untagged`, which reports every mistake as "did not match any
/// variant". This one reports which key or name is wrong, and where.
struct NameOrTable;

impl<'de> Visitor<'de> for NameOrTable {
    type Value = ScheduleConfig;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(
            "the name of a schedule (constant, polynomial, inverse-sqrt, cosine, epochs) or a table with `kind`",
        )
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<ScheduleConfig, E> {
        Ok(ScheduleConfig { kind: ScheduleKind::deserialize(name.into_deserializer())?, ..ScheduleConfig::default() })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ScheduleConfig, A::Error> {
        Table::deserialize(MapAccessDeserializer::new(map))
    }
}

/// The table form. `kind` has no default: without it, a table would silently be a constant
/// schedule.
#[derive(Deserialize)]
#[serde(remote = "ScheduleConfig", deny_unknown_fields)]
struct Table {
    kind: ScheduleKind,
    #[serde(default)]
    warmup_updates: u64,
    #[serde(default)]
    total_updates: Option<u64>,
    #[serde(default)]
    end_lr: f64,
    #[serde(default = "default_power")]
    power: f64,
    #[serde(default)]
    shrink: Option<f64>,
    #[serde(default)]
    shrink_from_epoch: Option<u64>,
}

fn default_power() -> f64 {
    ScheduleConfig::default().power
}

#[cfg(test)]
mod tests;
