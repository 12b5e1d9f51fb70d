//! What the configs of all models have in common: how a wrong value is told.

use thiserror::Error;

/// What is wrong with a model's config.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("not a {model} config: {reason}")]
    Json { model: &'static str, reason: serde_json::Error },
    #[error("{key} = {value}: {reason}")]
    Value { key: &'static str, value: String, reason: String },
}

/// Far above every model there is, and low enough that products of sizes can be computed.
pub(crate) const LARGEST_SIZE: usize = 1 << 24;

pub(crate) fn check(
    key: &'static str,
    value: impl ToString,
    is_right: bool,
    reason: impl Into<String>,
) -> Result<(), ConfigError> {
    if is_right { Ok(()) } else { Err(ConfigError::Value { key, value: value.to_string(), reason: reason.into() }) }
}

/// A dimension of the model.
pub(crate) fn check_size(key: &'static str, size: usize) -> Result<(), ConfigError> {
    check(key, size, (1..=LARGEST_SIZE).contains(&size), format!("must be from 1 to {LARGEST_SIZE}"))
}

/// A dropout rate.
pub(crate) fn check_rate(key: &'static str, rate: f64) -> Result<(), ConfigError> {
    check(key, rate, (0.0..1.0).contains(&rate), "must be at least 0 and below 1")
}
