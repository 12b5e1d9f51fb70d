//! The hyper-parameters of an optimizer and their valid values.
//!
//! Plain data with a default for every field. It is flattened into the optimizer section of a run's
//! configuration, which also holds the learning rate and clipping, and refuses unknown keys.

use serde::{Deserialize, Serialize};

use crate::OptimError;

/// The update rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerName {
    /// `torch.optim.SGD` with momentum or Nesterov momentum; weight decay is part of the gradient.
    Sgd,
    /// `torch.optim.Adam`; weight decay is part of the gradient.
    Adam,
    /// `torch.optim.AdamW`: weight decay shrinks the parameters and is not part of the gradient.
    #[default]
    AdamW,
    /// `torch.optim.Adadelta`; weight decay is part of the gradient. Its usual learning rate is 1.
    Adadelta,
    /// LAMB as in `timm.optim.Lamb`: Adam's direction with bias correction plus `weight_decay * p`,
    /// scaled for each parameter by |p| / |direction|. As in timm, parameters without weight decay
    /// (all of them, if `weight_decay` is 0) are not scaled unless `always_adapt` is set. timm also
    /// clips the global norm inside (`max_grad_norm = 1`); here the trainer does that.
    Lamb,
    /// Adafactor as in `transformers.optimization.Adafactor`: a parameter with two or more
    /// dimensions stores only row and column means of the squared gradient, over its last two
    /// dimensions.
    Adafactor,
}

impl OptimizerName {
    /// The name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            OptimizerName::Sgd => "sgd",
            OptimizerName::Adam => "adam",
            OptimizerName::AdamW => "adamw",
            OptimizerName::Adadelta => "adadelta",
            OptimizerName::Lamb => "lamb",
            OptimizerName::Adafactor => "adafactor",
        }
    }
}

/// `eps = 1e-8`, or two numbers for Adafactor: `eps = [1e-30, 1e-3]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "`eps` must be a number, or for adafactor two of them, such as [1e-30, 1e-3]")]
pub enum Eps {
    One(f64),
    Two([f64; 2]),
}

/// Hyper-parameters, all optional in a file; each optimizer reads its own. Settings of one
/// optimizer are refused with another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OptimizerConfig {
    pub name: OptimizerName,
    /// SGD: the fraction of the velocity that each step keeps. The default is 0.9 (0 in PyTorch).
    pub momentum: f32,
    /// SGD: use Nesterov momentum.
    pub nesterov: bool,
    /// Adam, AdamW and LAMB: decay of the running means of gradients and of their squares.
    pub betas: [f64; 2],
    /// Added to the denominator. Default: 1e-8 for Adam and AdamW, 1e-6 for Adadelta and LAMB.
    /// Adafactor has two: one added to squared gradients, and the smallest scale of a parameter;
    /// the default is [1e-30, 1e-3].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eps: Option<Eps>,
    /// Applies to weights only, not to biases and norm parameters, see [`crate::decays`]. Parameter
    /// groups can change that.
    pub weight_decay: f64,
    /// Adadelta: decay of the running means. Default: 0.9.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rho: Option<f64>,
    /// LAMB: scale parameters without weight decay too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub always_adapt: Option<bool>,
    /// LAMB: never scale a step up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_clip: Option<bool>,
    /// Adafactor: the largest root mean square of a parameter's step before it is scaled. Default:
    /// 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_threshold: Option<f64>,
    /// Adafactor: squared gradients decay by `1 - step^decay_rate`. Default: -0.8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_rate: Option<f64>,
    /// Adafactor: decay of a running mean of steps, which needs as much memory as the parameters.
    /// Default: no running mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta1: Option<f64>,
    /// Adafactor: multiply the rate by the root mean square of the parameter. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_parameter: Option<bool>,
    /// Adafactor: compute the rate from the step number instead of using the schedule's. Default:
    /// true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative_step: Option<bool>,
    /// Adafactor with `relative_step`: start with a rate of 1e-6 that grows by 1e-6 each step.
    /// Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_init: Option<bool>,
}

impl Default for OptimizerConfig {
    fn default() -> OptimizerConfig {
        OptimizerConfig {
            name: OptimizerName::default(),
            momentum: 0.9,
            nesterov: false,
            betas: [0.9, 0.999],
            eps: None,
            weight_decay: 0.0,
            rho: None,
            always_adapt: None,
            trust_clip: None,
            clip_threshold: None,
            decay_rate: None,
            beta1: None,
            scale_parameter: None,
            relative_step: None,
            warmup_init: None,
        }
    }
}

impl OptimizerConfig {
    /// Added to the denominator; for Adafactor the first number, added to squared gradients.
    pub(super) fn eps(&self) -> f64 {
        match (self.eps, self.name) {
            (Some(Eps::One(eps) | Eps::Two([eps, _])), _) => eps,
            (None, OptimizerName::Adafactor) => 1e-30,
            (None, OptimizerName::Adadelta | OptimizerName::Lamb) => 1e-6,
            (None, _) => 1e-8,
        }
    }

    /// Adafactor: the smallest scale of a parameter.
    pub(super) fn min_scale(&self) -> f64 {
        match self.eps {
            Some(Eps::Two([_, min])) => min,
            _ => 1e-3,
        }
    }

    pub(super) fn rho(&self) -> f64 {
        self.rho.unwrap_or(0.9)
    }

    pub(super) fn clip_threshold(&self) -> f64 {
        self.clip_threshold.unwrap_or(1.0)
    }

    pub(super) fn decay_rate(&self) -> f64 {
        self.decay_rate.unwrap_or(-0.8)
    }

    pub(super) fn scale_parameter(&self) -> bool {
        self.scale_parameter.unwrap_or(true)
    }

    pub(super) fn relative_step(&self) -> bool {
        self.name == OptimizerName::Adafactor && self.relative_step.unwrap_or(true)
    }

    pub(super) fn warmup_init(&self) -> bool {
        self.warmup_init.unwrap_or(false)
    }

    /// Refuses values out of range. The bounds are those of the `f32` numbers that the step uses:
    /// an `eps` that rounds to 0 would cause a division by 0, and a beta that rounds to 1 would
    /// keep all past gradients.
    pub fn validate(&self) -> Result<(), OptimError> {
        if let Some((key, owner)) = self.foreign() {
            return self.refuse(key, "set".into(), &format!("left out: it belongs to {owner}"));
        }
        if !(0.0..1.0).contains(&self.momentum) {
            return self.refuse("momentum", self.momentum.to_string(), "at least 0 and below 1");
        }
        let fits = |beta: &f64| (0.0..1.0).contains(&(*beta as f32));
        if !self.betas.iter().all(fits) {
            return self.refuse("betas", format!("{:?}", self.betas), "two numbers, each at least 0 and below 1");
        }
        for (key, value) in [("rho", self.rho), ("beta1", self.beta1)] {
            if let Some(value) = value.filter(|value| !fits(value)) {
                return self.refuse(key, value.to_string(), "at least 0 and below 1");
            }
        }
        self.validate_eps()?;
        let finite = |value: f64| (value as f32).is_finite();
        if !(self.weight_decay >= 0.0 && finite(self.weight_decay)) {
            let rule = "a finite number that is not negative";
            return self.refuse("weight_decay", self.weight_decay.to_string(), rule);
        }
        if self.nesterov && self.momentum == 0.0 {
            return self.refuse("nesterov", "true".into(), "false where `momentum` is 0");
        }
        if !(self.clip_threshold() > 0.0 && finite(self.clip_threshold())) {
            return self.refuse("clip_threshold", self.clip_threshold().to_string(), "a finite number above 0");
        }
        if !(self.decay_rate() < 0.0 && self.decay_rate().is_finite()) {
            return self.refuse("decay_rate", self.decay_rate().to_string(), "a finite number below 0, such as -0.8");
        }
        if self.warmup_init() && !self.relative_step() {
            return self.refuse("warmup_init", "true".into(), "false where `relative_step` is false");
        }
        Ok(())
    }

    fn validate_eps(&self) -> Result<(), OptimError> {
        if matches!(self.eps, Some(Eps::Two(_))) && self.name != OptimizerName::Adafactor {
            return self.refuse("eps", "two numbers".into(), "one number: only adafactor has two");
        }
        for eps in [self.eps(), self.min_scale()] {
            if !(eps.is_finite() && eps as f32 > 0.0) {
                let example = if self.name == OptimizerName::Adafactor { "[1e-30, 1e-3]" } else { "1e-8" };
                let rule = format!("above 0 in single precision, for instance {example}");
                return self.refuse("eps", eps.to_string(), &rule);
            }
        }
        Ok(())
    }

    /// A setting that belongs to another optimizer, and that optimizer.
    fn foreign(&self) -> Option<(&'static str, &'static str)> {
        use OptimizerName::{Adadelta, Adafactor, Lamb, Sgd};
        let given = [
            ("nesterov", self.nesterov, Sgd),
            ("rho", self.rho.is_some(), Adadelta),
            ("always_adapt", self.always_adapt.is_some(), Lamb),
            ("trust_clip", self.trust_clip.is_some(), Lamb),
            ("clip_threshold", self.clip_threshold.is_some(), Adafactor),
            ("decay_rate", self.decay_rate.is_some(), Adafactor),
            ("beta1", self.beta1.is_some(), Adafactor),
            ("scale_parameter", self.scale_parameter.is_some(), Adafactor),
            ("relative_step", self.relative_step.is_some(), Adafactor),
            ("warmup_init", self.warmup_init.is_some(), Adafactor),
        ];
        let foreign = given.into_iter().find(|(_, given, owner)| *given && *owner != self.name);
        foreign.map(|(key, _, owner)| (key, owner.as_str()))
    }

    fn refuse(&self, key: &'static str, value: String, rule: &str) -> Result<(), OptimError> {
        let owner = format!("optimizer {}", self.name.as_str());
        Err(OptimError::Setting { owner, key, value, rule: rule.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Section {
        lr: f64,
        #[serde(flatten)]
        optimizer: OptimizerConfig,
    }

    #[test]
    fn it_flattens_into_a_section_and_fills_in_defaults() {
        let text = "lr = 1e-4\nname = 'sgd'\nnesterov = true\nweight_decay = 0";
        let section: Section = toml::from_str(text).unwrap();
        assert_eq!(section.lr, 1e-4);
        let expected = OptimizerConfig { name: OptimizerName::Sgd, nesterov: true, ..OptimizerConfig::default() };
        assert_eq!(section.optimizer, expected);
        let empty: OptimizerConfig = toml::from_str("").unwrap();
        assert_eq!(empty, OptimizerConfig::default());
    }

    #[test]
    fn names_match_the_configuration() {
        use OptimizerName::{Adadelta, Adafactor, Adam, AdamW, Lamb, Sgd};
        for name in [Sgd, Adam, AdamW, Adadelta, Lamb, Adafactor] {
            let text = format!("name = '{}'", name.as_str());
            let config = toml::from_str::<OptimizerConfig>(&text).unwrap();
            assert_eq!(config.name, name);
            assert_eq!(config.validate(), Ok(()));
        }
        let error = toml::from_str::<OptimizerConfig>("name = 'lion'").unwrap_err();
        assert!(error.to_string().contains("`adamw`"), "{error}");
    }

    #[test]
    fn eps_is_one_number_or_two() {
        let eps = |text: &str| toml::from_str::<OptimizerConfig>(text).map(|config| config.eps);
        assert_eq!(eps("eps = 1e-4"), Ok(Some(Eps::One(1e-4))));
        assert_eq!(eps("eps = 1"), Ok(Some(Eps::One(1.0))));
        assert_eq!(eps("eps = [1e-30, 1]"), Ok(Some(Eps::Two([1e-30, 1.0]))));
        for wrong in ["eps = 'small'", "eps = [1e-30]", "eps = [1, 2, 3]"] {
            let error = eps(wrong).unwrap_err().to_string();
            assert!(error.contains("`eps` must be a number, or for adafactor two"), "{error}");
        }
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (text, key) in [
            ("momentum = 1.0", "momentum"),
            ("momentum = -0.1", "momentum"),
            ("momentum = nan", "momentum"),
            ("betas = [0.9, 1.0]", "betas"),
            ("betas = [-0.1, 0.9]", "betas"),
            ("betas = [0.9, nan]", "betas"),
            ("betas = [0.9, 0.99999999999]", "betas"),
            ("eps = 0.0", "eps"),
            ("eps = 1e-60", "eps"),
            ("eps = inf", "eps"),
            ("eps = [1e-8, 1e-3]", "eps"),
            ("name = 'adafactor'\neps = [1e-30, 0]", "eps"),
            ("name = 'adafactor'\neps = [1e-60, 1e-3]", "eps"),
            ("weight_decay = -0.01", "weight_decay"),
            ("weight_decay = 1e60", "weight_decay"),
            ("nesterov = true", "nesterov"),
            ("name = 'sgd'\nmomentum = 0\nnesterov = true", "nesterov"),
            ("name = 'adadelta'\nrho = 1", "rho"),
            ("rho = 0.9", "rho"),
            ("name = 'adafactor'\nbeta1 = 1", "beta1"),
            ("name = 'adafactor'\nclip_threshold = 0", "clip_threshold"),
            ("name = 'adafactor'\ndecay_rate = 0.8", "decay_rate"),
            ("name = 'adafactor'\nrelative_step = false\nwarmup_init = true", "warmup_init"),
            ("name = 'lamb'\nrelative_step = false", "relative_step"),
            ("name = 'adafactor'\ntrust_clip = true", "trust_clip"),
        ] {
            let config: OptimizerConfig = toml::from_str(text).unwrap();
            let error = config.validate().unwrap_err();
            let named = matches!(&error, OptimError::Setting { key: k, .. } if *k == key);
            assert!(named, "{text}: {error}");
        }
    }
}
