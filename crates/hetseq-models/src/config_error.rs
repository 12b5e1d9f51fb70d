//! The error for invalid model configs, and checks that all models use.

use thiserror::Error;

use crate::attention::MAX_POSITIONS;

/// An invalid model config.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("not a {model} config: {reason}")]
    Json { model: &'static str, reason: serde_json::Error },
    #[error("{key} = {value}: {reason}")]
    Value { key: &'static str, value: String, reason: String },
}

/// Far above every existing model, and small enough that products of sizes do not overflow.
pub(crate) const MAX_SIZE: usize = 1 << 24;

pub(crate) fn check(
    key: &'static str,
    value: impl ToString,
    is_valid: bool,
    reason: impl Into<String>,
) -> Result<(), ConfigError> {
    if is_valid { Ok(()) } else { Err(ConfigError::Value { key, value: value.to_string(), reason: reason.into() }) }
}

/// Checks a dimension of the model.
pub(crate) fn check_size(key: &'static str, size: usize) -> Result<(), ConfigError> {
    check(key, size, (1..=MAX_SIZE).contains(&size), format!("must be from 1 to {MAX_SIZE}"))
}

/// Checks the number of positions.
pub(crate) fn check_positions(positions: usize) -> Result<(), ConfigError> {
    let reason = format!("must be from 1 to {MAX_POSITIONS}");
    check("max_position_embeddings", positions, (1..=MAX_POSITIONS).contains(&positions), reason)
}

/// Checks a dropout rate.
pub(crate) fn check_rate(key: &'static str, rate: f64) -> Result<(), ConfigError> {
    check(key, rate, (0.0..1.0).contains(&rate), "must be at least 0 and below 1")
}
