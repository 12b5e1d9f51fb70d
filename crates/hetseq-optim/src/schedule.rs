//! Learning-rate schedules: pure functions of the configuration and the number of the update.
//!
//! There is no schedule object and no state to save; resuming at update k asks for update k. The
//! trainer calls [`lr`] once per update and shares the result as bits with the other ranks.
//!
//! The curves equal those of Hugging Face `transformers.optimization`, warm-up included: it starts
//! from 0, so **update 0 of a run with warm-up changes nothing but the optimizer's state**, and update
//! `warmup_updates` is the first at the full rate.

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
    /// The base rate for ever (`get_constant_schedule_with_warmup`).
    #[default]
    Constant,
    /// From the base rate to `end_lr` as `(1 - progress)^power`; a straight line by default
    /// (`get_polynomial_decay_schedule_with_warmup`).
    Polynomial,
    /// As `1 / sqrt(update)`, joined to the end of warm-up (`get_inverse_sqrt_schedule`, whose time
    /// scale is the length of warm-up, or 10,000 updates without one). Has no end; `end_lr` is a floor.
    InverseSqrt,
    /// Half a cosine from the base rate to `end_lr` (`get_cosine_schedule_with_warmup`, and
    /// `get_cosine_with_min_lr_schedule_with_warmup` if `end_lr` is not 0).
    Cosine,
}

/// How the learning rate changes over a run.
///
/// In TOML either the name alone, `schedule = "cosine"`, or a table:
///
/// ```toml
/// [schedule]
/// kind = "polynomial"
/// warmup_updates = 10_000
/// end_lr = 1e-7
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScheduleConfig {
    pub kind: ScheduleKind,
    /// Updates of linear warm-up from 0.
    pub warmup_updates: u64,
    /// The update at which decay ends, warm-up counted; by default the last one of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_updates: Option<u64>,
    /// The learning rate at the end of decay and after it.
    pub end_lr: f64,
    /// The exponent of `polynomial`.
    pub power: f64,
}

impl Default for ScheduleConfig {
    fn default() -> ScheduleConfig {
        ScheduleConfig {
            kind: ScheduleKind::default(),
            warmup_updates: 0,
            total_updates: None,
            end_lr: 0.0,
            power: 1.0,
        }
    }
}

impl ScheduleConfig {
    /// Refuses values without a meaning, and settings that the chosen kind would silently ignore.
    pub fn validate(&self, base_lr: f64) -> Result<(), OptimError> {
        let refuse = |key, value: f64, rule: &str| {
            Err(OptimError::Setting { owner: "schedule".into(), key, value: value.to_string(), rule: rule.into() })
        };
        if !(base_lr.is_finite() && base_lr >= 0.0) {
            return refuse("lr", base_lr, "a finite number that is not negative");
        }
        if !(self.end_lr >= 0.0 && self.end_lr <= base_lr) {
            let rule = format!("between 0 and the base learning rate, {base_lr}");
            return refuse("end_lr", self.end_lr, &rule);
        }
        if !(self.power.is_finite() && self.power > 0.0) {
            return refuse("power", self.power, "a finite number above 0");
        }
        if self.kind == ScheduleKind::Constant && self.end_lr != 0.0 {
            let rule = "left out for the constant schedule, which does not decay";
            return refuse("end_lr", self.end_lr, rule);
        }
        if self.kind != ScheduleKind::Polynomial && self.power != 1.0 {
            let rule = "left out for all schedules but polynomial";
            return refuse("power", self.power, rule);
        }
        Ok(())
    }
}

/// The learning rate of the update about to be applied, counted from 0.
///
/// `total_updates` is the length of the run, used where the configuration names no end of its own.
/// From there on, polynomial and cosine stay at `end_lr` (in `transformers` the cosine would rise
/// again). Warm-up longer than the whole run is cut off by its end, not squeezed into it.
pub fn lr(config: &ScheduleConfig, base_lr: f64, total_updates: u64, update: u64) -> f64 {
    let warmup = config.warmup_updates;
    if update < warmup {
        return base_lr * (update as f64 / warmup as f64);
    }
    let end_lr = config.end_lr;
    let progress = progress(warmup, config.total_updates.unwrap_or(total_updates), update);
    // `libm`, not the standard library: its functions are the platform's and differ in the last bit.
    match config.kind {
        ScheduleKind::Constant => base_lr,
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

/// The part of the decay that is done, from 0 at the end of warm-up to 1 at `total` and after it.
fn progress(warmup: u64, total: u64, update: u64) -> f64 {
    if update >= total {
        return 1.0;
    }
    // Here warmup <= update < total, so that the divisor is not 0.
    (update - warmup) as f64 / (total - warmup) as f64
}

impl<'de> Deserialize<'de> for ScheduleConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ScheduleConfig, D::Error> {
        deserializer.deserialize_any(NameOrTable)
    }
}

/// A visitor rather than serde's `untagged`, which would answer every mistake with "did not match any
/// variant"; this one passes on which key or name is wrong, and where.
struct NameOrTable;

impl<'de> Visitor<'de> for NameOrTable {
    type Value = ScheduleConfig;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("the name of a schedule (constant, polynomial, inverse-sqrt, cosine) or a table with `kind`")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<ScheduleConfig, E> {
        Ok(ScheduleConfig { kind: ScheduleKind::deserialize(name.into_deserializer())?, ..ScheduleConfig::default() })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ScheduleConfig, A::Error> {
        Table::deserialize(MapAccessDeserializer::new(map))
    }
}

/// The table form. `kind` has no default there: a table that forgot it would be a constant schedule.
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
    #[serde(default = "straight")]
    power: f64,
}

fn straight() -> f64 {
    ScheduleConfig::default().power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Run {
        schedule: ScheduleConfig,
    }

    fn parse(text: &str) -> Result<ScheduleConfig, String> {
        toml::from_str::<Run>(text).map(|run| run.schedule).map_err(|error| error.to_string())
    }

    fn schedule(kind: ScheduleKind, warmup_updates: u64) -> ScheduleConfig {
        ScheduleConfig { kind, warmup_updates, ..ScheduleConfig::default() }
    }

    const KINDS: [ScheduleKind; 4] =
        [ScheduleKind::Constant, ScheduleKind::Polynomial, ScheduleKind::InverseSqrt, ScheduleKind::Cosine];

    #[test]
    fn a_name_alone_is_a_schedule() {
        for (name, kind) in ["constant", "polynomial", "inverse-sqrt", "cosine"].into_iter().zip(KINDS) {
            let parsed = parse(&format!("schedule = '{name}'")).unwrap();
            assert_eq!(parsed, schedule(kind, 0));
        }
    }

    #[test]
    fn a_table_is_a_schedule_and_survives_a_round_trip() {
        let text = "[schedule]\nkind = 'polynomial'\nwarmup_updates = 10\nend_lr = 0\npower = 2";
        let parsed = parse(text).unwrap();
        assert_eq!(parsed, ScheduleConfig { power: 2.0, ..schedule(ScheduleKind::Polynomial, 10) });
        let written = toml::to_string(&Run { schedule: parsed.clone() }).unwrap();
        assert_eq!(parse(&written).unwrap(), parsed);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, words) in [
            ("schedule = 'cosin'", ["cosin", "inverse-sqrt"]),
            ("schedule = { kind = 'linear' }", ["linear", "polynomial"]),
            ("schedule = { kind = 'cosine', warmup = 3 }", ["`warmup`", "warmup_updates"]),
            ("schedule = { warmup_updates = 3 }", ["missing", "kind"]),
            ("schedule = 3", ["name of a schedule", "inverse-sqrt"]),
        ] {
            let error = parse(text).unwrap_err();
            assert!(words.iter().all(|w| error.contains(w)), "{text}: {error}");
        }
    }

    #[test]
    fn warm_up_rises_from_zero_and_meets_the_base_rate() {
        for kind in KINDS {
            let config = schedule(kind, 4);
            let rates: Vec<_> = (0..5).map(|u| lr(&config, 2.0, 100, u)).collect();
            assert_eq!(rates, [0.0, 0.5, 1.0, 1.5, 2.0], "{kind:?}");
            assert_eq!(lr(&schedule(kind, 0), 2.0, 100, 0), 2.0, "{kind:?}");
        }
    }

    #[test]
    fn after_the_end_the_rate_stays() {
        for kind in [ScheduleKind::Polynomial, ScheduleKind::Cosine] {
            let config = ScheduleConfig { end_lr: 0.25, ..schedule(kind, 2) };
            for update in [10, 11, 19, u64::MAX] {
                assert_eq!(lr(&config, 1.0, 10, update), 0.25, "{kind:?} {update}");
            }
            // No room for decay: warm-up runs as written, then the end value.
            for (total, update, rate) in [(2, 1, 0.5), (2, 2, 0.25), (1, 1, 0.5), (0, 7, 0.25)] {
                assert_eq!(lr(&config, 1.0, total, update), rate, "{kind:?} {total}");
            }
        }
        let own_end = ScheduleConfig { total_updates: Some(5), ..schedule(ScheduleKind::Cosine, 0) };
        assert_eq!(lr(&own_end, 1.0, 10, 5), 0.0);
    }

    #[test]
    fn decay_never_rises_and_never_passes_the_end() {
        for kind in KINDS {
            let config = ScheduleConfig { end_lr: 1e-3, ..schedule(kind, 7) };
            let rates: Vec<_> = (7..300).map(|u| lr(&config, 0.1, 200, u)).collect();
            assert!(rates.windows(2).all(|w| w[1] <= w[0]), "{kind:?}");
            assert!(rates.iter().all(|r| (1e-3..=0.1).contains(r)), "{kind:?}");
        }
    }

    #[test]
    fn settings_without_effect_or_meaning_are_refused() {
        let base = ScheduleConfig::default();
        assert_eq!(base.validate(0.1), Ok(()));
        let bad = [
            ScheduleConfig { end_lr: 0.2, kind: ScheduleKind::Cosine, ..base.clone() },
            ScheduleConfig { end_lr: -0.1, kind: ScheduleKind::Cosine, ..base.clone() },
            ScheduleConfig { end_lr: f64::NAN, ..base.clone() },
            ScheduleConfig { power: 0.0, kind: ScheduleKind::Polynomial, ..base.clone() },
            ScheduleConfig { power: 2.0, kind: ScheduleKind::Cosine, ..base.clone() },
            ScheduleConfig { end_lr: 0.01, ..base.clone() },
        ];
        for config in bad {
            let error = config.validate(0.1).unwrap_err();
            assert!(matches!(error, OptimError::Setting { .. }), "{config:?}");
        }
        assert!(base.validate(f64::INFINITY).is_err());
        assert!(base.validate(-1.0).is_err());
    }
}
