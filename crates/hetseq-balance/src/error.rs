//! Errors between a profile and a plan: returned by tables, profiles and `share`.
//!
//! Each message says what happened and what to do. Drift and predictions cannot fail.

/// A cost table, a profile or an update that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BalanceError {
    #[error(
        "none of the {devices} devices can take samples: each has a speed that is not a positive number or a \
         micro-batch cap of 0 samples; check the weights and the micro-batch caps"
    )]
    NoUsableDevice { devices: usize },

    #[error(
        "a sample of {sample_tokens} tokens fits no device: the largest micro-batch cap is {largest_cap_tokens} \
         tokens; raise max_tokens on a device to at least {sample_tokens}, or shorten the samples"
    )]
    SampleTooLong { sample_tokens: u32, largest_cap_tokens: u32 },

    #[error("a cost table has no points; measure at least one micro-batch, or set `tokens_per_s`")]
    EmptyTable,

    #[error(
        "a point of a cost table has {samples} samples of {tokens} tokens; a micro-batch has at least one sample of \
         one token: remove the point"
    )]
    EmptyPoint { samples: u32, tokens: u32 },
}
