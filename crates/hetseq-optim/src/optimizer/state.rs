//! Saves and restores the optimizer's state as named slices and scalars, for exact resume.
//!
//! The names are PyTorch's. The checkpoint decides how to store them; it must return the scalars
//! with the same bits.

use std::collections::BTreeMap;

use super::Optimizer;
use crate::{OptimError, OptimizerName};

const STEP: &str = "step";
const POWERS: [&str; 2] = ["beta1_power", "beta2_power"];

/// Steps are stored as `f64`, which is exact up to this number.
const MAX_STEPS: f64 = 9_007_199_254_740_992.0;

impl Optimizer {
    /// The moments by name: `momentum_buffer` for SGD with momentum, `exp_avg` and `exp_avg_sq` for
    /// Adam, AdamW and LAMB, `square_avg` and `acc_delta` for Adadelta, none for plain SGD. Each is
    /// as long as the trainable part of the layout. Adafactor has `exp_avg_sq_row` and
    /// `exp_avg_sq_col` for parameters with two or more dimensions, one parameter after the other,
    /// `exp_avg_sq` for the others, and `exp_avg` with `beta1`.
    pub fn state(&self) -> Vec<(String, &[f32])> {
        self.moments.slots().into_iter().map(|(name, values)| (name.to_owned(), &values[..])).collect()
    }

    /// `step`, and for Adam, AdamW and LAMB the running powers `beta1_power` and `beta2_power`.
    pub fn scalars(&self) -> BTreeMap<String, f64> {
        let mut scalars = BTreeMap::from([(STEP.to_owned(), self.steps as f64)]);
        if self.has_powers() {
            scalars.extend(POWERS.map(String::from).into_iter().zip(self.beta_powers));
        }
        scalars
    }

    /// Restores the results of [`state`](Self::state) and [`scalars`](Self::scalars), in any order.
    /// Later steps are bit-identical to those of the saved run. On an error nothing changes.
    pub fn restore(
        &mut self,
        slots: Vec<(String, Vec<f32>)>,
        scalars: BTreeMap<String, f64>,
    ) -> Result<(), OptimError> {
        let (steps, beta_powers) = self.checked_scalars(&scalars)?;
        let mut slots = self.checked_slots(slots)?;
        self.steps = steps;
        self.beta_powers = beta_powers;
        for (name, values) in self.moments.slots_mut() {
            if let Some(saved) = slots.remove(name) {
                *values = saved;
            }
        }
        Ok(())
    }

    fn has_powers(&self) -> bool {
        matches!(self.config.name, OptimizerName::Adam | OptimizerName::AdamW | OptimizerName::Lamb)
    }

    fn checked_scalars(&self, scalars: &BTreeMap<String, f64>) -> Result<(u64, [f64; 2]), OptimError> {
        let powers: &[&str] = if self.has_powers() { &POWERS } else { &[] };
        let used = [&[STEP], powers].concat();
        if let Some(name) = scalars.keys().find(|name| !used.contains(&name.as_str())) {
            return Err(self.unknown(name.clone(), &used));
        }
        let value = |name: &'static str| {
            let found = scalars.get(name).copied();
            found.ok_or_else(|| self.missing(name))
        };
        let refuse = |name: &str, value, rule| Err(OptimError::StateScalar { name: name.into(), value, rule });

        let step = value(STEP)?;
        if !((0.0..=MAX_STEPS).contains(&step) && step.fract() == 0.0) {
            return refuse(STEP, step, "an integer that is not negative");
        }
        let mut beta_powers = [1.0; 2];
        for (power, name) in beta_powers.iter_mut().zip(powers) {
            *power = value(name)?;
            // A power of 1 after a step would give a bias correction of 0, which is a divisor.
            let fits = if step == 0.0 { *power == 1.0 } else { (0.0..1.0).contains(power) };
            if !fits {
                let rule = "1 before the first update, and at least 0 and below 1 after it";
                return refuse(name, *power, rule);
            }
        }
        Ok((step as u64, beta_powers))
    }

    /// Checks that the slots are exactly those of this optimizer, and returns them by name.
    fn checked_slots(&self, slots: Vec<(String, Vec<f32>)>) -> Result<BTreeMap<String, Vec<f32>>, OptimError> {
        let lengths: BTreeMap<&str, usize> = self.moments.slots().into_iter().map(|(n, v)| (n, v.len())).collect();
        let mut found = BTreeMap::new();
        for (name, values) in slots {
            let Some(&expected) = lengths.get(name.as_str()) else {
                let used: Vec<&str> = lengths.into_keys().collect();
                return Err(self.unknown(name, &used));
            };
            if values.len() != expected {
                return Err(OptimError::StateLength { name, expected, found: values.len() });
            }
            if found.contains_key(&name) {
                return Err(OptimError::DuplicateState { name });
            }
            found.insert(name, values);
        }
        match lengths.keys().find(|name| !found.contains_key(**name)) {
            Some(name) => Err(self.missing(name)),
            None => Ok(found),
        }
    }

    fn missing(&self, name: &str) -> OptimError {
        OptimError::MissingState { name: name.into(), optimizer: self.config.name.as_str() }
    }

    fn unknown(&self, name: String, used: &[&str]) -> OptimError {
        let used = if used.is_empty() { "none".into() } else { used.join(", ") };
        OptimError::UnknownState { name, optimizer: self.config.name.as_str(), used }
    }
}
