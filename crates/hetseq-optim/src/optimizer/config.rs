//! The hyper-parameters of an optimizer and what they may be.
//!
//! Plain data with a default for every field, made to be flattened into the optimizer section of a
//! run's configuration, which also holds the learning rate and clipping and refuses unknown keys.

use serde::{Deserialize, Serialize};

use crate::OptimError;

/// Which update rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerName {
    /// `torch.optim.SGD` with momentum, also Nesterov's; weight decay is part of the gradient.
    Sgd,
    /// `torch.optim.Adam`; weight decay is part of the gradient.
    Adam,
    /// `torch.optim.AdamW`: weight decay shrinks the parameters, apart from the gradient.
    #[default]
    AdamW,
}

impl OptimizerName {
    /// As it is written in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            OptimizerName::Sgd => "sgd",
            OptimizerName::Adam => "adam",
            OptimizerName::AdamW => "adamw",
        }
    }
}

/// Hyper-parameters, all optional in a file; each optimizer reads its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OptimizerConfig {
    pub name: OptimizerName,
    /// SGD: the part of the velocity kept each step. 0.9 unless given, where PyTorch has 0.
    pub momentum: f32,
    /// SGD: look ahead along the velocity.
    pub nesterov: bool,
    /// Adam and AdamW: decay of the running mean of gradients and of their squares.
    pub betas: [f64; 2],
    /// Adam and AdamW: added to the denominator.
    pub eps: f64,
    /// Of weights only: biases and norm parameters never decay, see [`crate::decays`].
    pub weight_decay: f64,
}

impl Default for OptimizerConfig {
    fn default() -> OptimizerConfig {
        OptimizerConfig {
            name: OptimizerName::default(),
            momentum: 0.9,
            nesterov: false,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.0,
        }
    }
}

impl OptimizerConfig {
    /// Refuses values out of range. Bounds are those of the `f32` numbers that the step uses: an `eps`
    /// that rounds to 0 would divide by it, a beta that rounds to 1 would never forget.
    pub fn validate(&self) -> Result<(), OptimError> {
        let refuse = |key, value: String, rule: &str| {
            Err(OptimError::Setting {
                owner: format!("optimizer {}", self.name.as_str()),
                key,
                value,
                rule: rule.into(),
            })
        };
        if !(0.0..1.0).contains(&self.momentum) {
            let rule = "at least 0 and below 1";
            return refuse("momentum", self.momentum.to_string(), rule);
        }
        let fits = |beta: &f64| (0.0..1.0).contains(&(*beta as f32));
        if !self.betas.iter().all(fits) {
            let rule = "two numbers, each at least 0 and below 1";
            return refuse("betas", format!("{:?}", self.betas), rule);
        }
        if !(self.eps.is_finite() && self.eps as f32 > 0.0) {
            let rule = "above 0 in single precision, for instance 1e-8";
            return refuse("eps", self.eps.to_string(), rule);
        }
        if !(self.weight_decay >= 0.0 && (self.weight_decay as f32).is_finite()) {
            let rule = "a finite number that is not negative";
            return refuse("weight_decay", self.weight_decay.to_string(), rule);
        }
        if self.nesterov && self.name != OptimizerName::Sgd {
            return refuse("nesterov", "true".into(), "left out: it belongs to sgd");
        }
        if self.nesterov && self.momentum == 0.0 {
            return refuse("nesterov", "true".into(), "false where `momentum` is 0");
        }
        Ok(())
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
    fn names_are_as_in_the_file() {
        use OptimizerName::{Adam, AdamW, Sgd};
        for name in [Sgd, Adam, AdamW] {
            let text = format!("name = '{}'", name.as_str());
            assert_eq!(toml::from_str::<OptimizerConfig>(&text).unwrap().name, name);
        }
        let error = toml::from_str::<OptimizerConfig>("name = 'lion'").unwrap_err();
        assert!(error.to_string().contains("`adamw`"), "{error}");
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
            ("weight_decay = -0.01", "weight_decay"),
            ("weight_decay = 1e60", "weight_decay"),
            ("nesterov = true", "nesterov"),
            ("name = 'sgd'\nmomentum = 0\nnesterov = true", "nesterov"),
        ] {
            let config: OptimizerConfig = toml::from_str(text).unwrap();
            let error = config.validate().unwrap_err();
            let named = matches!(&error, OptimError::Setting { key: k, .. } if *k == key);
            assert!(named, "{text}: {error}");
        }
    }
}
