//! `[optim]`: the optimizer, its learning rate and its schedule, in one table, and checks that
//! involve several keys. `hetseq-optim` implements the settings.

use hetseq_optim::{
    BaseRate, Eps, Layout, OptimError, Optimizer, OptimizerConfig, OptimizerName, ParameterGroups, Position,
    ScheduleConfig, ScheduleKind, lr,
};
use serde::{Deserialize, Serialize};

/// Keys of [`OptimizerConfig`] and those of the trainer, in one flat table, so that an error about
/// an unknown key has a line number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optim {
    pub name: OptimizerName,
    /// A number, or a list with one number per epoch. Required except for Adafactor.
    pub lr: Option<BaseRate>,
    pub clip_norm: Option<f64>,
    /// By default `epochs` if `lr` is a list, else `constant`.
    pub schedule: Option<ScheduleConfig>,
    #[serde(default = "default_momentum")]
    pub momentum: f32,
    #[serde(default)]
    pub nesterov: bool,
    #[serde(default = "default_betas")]
    pub betas: [f64; 2],
    pub eps: Option<Eps>,
    #[serde(default)]
    pub weight_decay: f64,
    /// Fine-tuning: each layer learns this much slower than the one above it. 1 is equal rates.
    pub layer_decay: Option<f64>,
    /// Fine-tuning: modules or parameters that do not change, by their names in a checkpoint. `*`,
    /// `?` and `[0-3]` as in a shell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    pub rho: Option<f64>,
    pub always_adapt: Option<bool>,
    pub trust_clip: Option<bool>,
    pub clip_threshold: Option<f64>,
    pub decay_rate: Option<f64>,
    pub beta1: Option<f64>,
    pub scale_parameter: Option<bool>,
    pub relative_step: Option<bool>,
    pub warmup_init: Option<bool>,
}

impl Optim {
    /// The optimizer for parameters of this layout. `groups` are those of the task, if it has any.
    pub(crate) fn build(&self, layout: &Layout, groups: Option<ParameterGroups>) -> Result<Optimizer, OptimError> {
        let groups = match (self.layer_decay, groups) {
            (Some(decay), _) => ParameterGroups::with_layer_decay(layout, decay)?,
            (None, Some(groups)) => groups,
            (None, None) => ParameterGroups::by_shape(layout),
        };
        Optimizer::with_groups(&self.optimizer(), layout, &groups)
    }

    pub fn optimizer(&self) -> OptimizerConfig {
        let is_adafactor = self.name == OptimizerName::Adafactor;
        OptimizerConfig {
            name: self.name,
            momentum: self.momentum,
            nesterov: self.nesterov,
            betas: self.betas,
            eps: self.eps,
            weight_decay: self.weight_decay,
            rho: self.rho,
            always_adapt: self.always_adapt,
            trust_clip: self.trust_clip,
            clip_threshold: self.clip_threshold,
            decay_rate: self.decay_rate,
            beta1: self.beta1,
            scale_parameter: self.scale_parameter,
            relative_step: if is_adafactor { Some(self.uses_relative_step()) } else { self.relative_step },
            warmup_init: self.warmup_init,
        }
    }

    /// Whether the optimizer computes its own rate: Adafactor's `relative_step`, the default if no
    /// rate is given.
    fn uses_relative_step(&self) -> bool {
        self.name == OptimizerName::Adafactor && self.relative_step.unwrap_or(self.lr.is_none())
    }

    pub fn schedule(&self) -> ScheduleConfig {
        let is_list = matches!(self.lr, Some(BaseRate::PerEpoch(_)));
        let kind = if is_list { ScheduleKind::Epochs } else { ScheduleKind::Constant };
        self.schedule.unwrap_or(ScheduleConfig { kind, ..ScheduleConfig::default() })
    }

    /// The schedule's rate for an update; 0 if the optimizer computes its own.
    pub fn scheduled_lr(&self, total_updates: u64, at: Position) -> f64 {
        self.lr.as_ref().map_or(0.0, |base| lr(&self.schedule(), base, total_updates, at))
    }

    pub(super) fn check(&self) -> Result<(), String> {
        match &self.lr {
            None if self.uses_relative_step() => {
                if self.schedule.is_some() {
                    return Err("optim.schedule: adafactor computes its own rate if optim.lr is left out; give \
                                optim.lr too, or leave out the schedule"
                        .to_owned());
                }
            }
            None => return Err("optim.lr is missing: set the learning rate, such as lr = 0.001".to_owned()),
            Some(_) if self.uses_relative_step() => {
                return Err("optim.relative_step = true computes its own rate: leave out optim.lr, or set \
                            relative_step = false"
                    .to_owned());
            }
            Some(base) => {
                if let Some(rate) = base.rates().iter().find(|rate| !(rate.is_finite() && **rate >= 0.0)) {
                    return Err(format!("optim.lr = {rate} must be zero or more"));
                }
            }
        }
        if self.clip_norm.is_some_and(|norm| norm.is_nan() || norm <= 0.0) {
            return Err("optim.clip_norm must be more than 0; leave it out for no clipping".to_owned());
        }
        if let Some(base) = &self.lr {
            self.schedule().validate(base).map_err(|error| error.to_string())?;
        }
        self.optimizer().validate().map_err(|error| error.to_string())
    }

    /// Checks `run.stop_min_lr` against these settings.
    pub(super) fn check_stop(&self, least: f64) -> Result<(), String> {
        if !(least.is_finite() && least >= 0.0) {
            return Err(format!("run.stop_min_lr = {least} must be zero or more"));
        }
        if self.warmup_init == Some(true) {
            return Err("run.stop_min_lr cannot be used with optim.warmup_init, which begins below it".to_owned());
        }
        match self.lr.as_ref().and_then(|base| base.rates().first()) {
            Some(first) if *first <= least => {
                Err(format!("run.stop_min_lr = {least} is not below optim.lr = {first}: the run would end at once"))
            }
            _ => Ok(()),
        }
    }
}

fn default_momentum() -> f32 {
    OptimizerConfig::default().momentum
}
fn default_betas() -> [f64; 2] {
    OptimizerConfig::default().betas
}

#[cfg(test)]
mod tests {
    use super::*;

    fn optim(text: &str) -> Result<Optim, String> {
        let optim: Optim = toml::from_str(text).map_err(|error| error.to_string())?;
        optim.check()?;
        Ok(optim)
    }

    #[test]
    fn a_list_of_rates_is_a_schedule_per_epoch() {
        let by_epoch = optim("name = 'sgd'\nlr = [0.25, 0.1]").unwrap();
        assert_eq!(by_epoch.schedule().kind, ScheduleKind::Epochs);
        let rates = [0, 1, 2].map(|epoch| by_epoch.scheduled_lr(100, Position { update: 7, epoch }));
        assert_eq!(rates, [0.25, 0.1, 0.1]);
        assert_eq!(optim("name = 'sgd'\nlr = 0.25").unwrap().schedule().kind, ScheduleKind::Constant);
        let mixed = optim("name = 'sgd'\nlr = [0.25, 0.1]\nschedule = 'cosine'").unwrap_err();
        assert!(mixed.starts_with("schedule: `lr` is a list"), "{mixed}");
    }

    #[test]
    fn only_adafactor_needs_no_rate() {
        let own = optim("name = 'adafactor'").unwrap();
        assert_eq!(own.optimizer().relative_step, Some(true));
        let given = optim("name = 'adafactor'\nlr = 1e-3").unwrap();
        assert_eq!(given.optimizer().relative_step, Some(false));
        for (text, expected) in [
            ("name = 'adam'", "optim.lr is missing"),
            ("name = 'adafactor'\nrelative_step = false", "optim.lr is missing"),
            ("name = 'adafactor'\nrelative_step = true\nlr = 1", "leave out optim.lr"),
            ("name = 'adafactor'\nschedule = 'cosine'", "give optim.lr too"),
            ("name = 'adam'\nlr = [1, -0.5]", "optim.lr = -0.5 must be zero or more"),
            ("name = 'adam'\nlr = 1\nrelative_step = false", "it belongs to adafactor"),
        ] {
            let error = optim(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn stop_min_lr_must_be_below_the_first_rate() {
        let base = optim("name = 'adam'\nlr = 0.1").unwrap();
        assert!(base.check_stop(0.01).is_ok());
        assert!(base.check_stop(0.1).unwrap_err().contains("would end at once"));
        assert!(base.check_stop(f64::NAN).is_err());
        assert!(optim("name = 'adafactor'").unwrap().check_stop(1e-4).is_ok());
    }
}
