//! Everything that can go wrong between a profile and a plan.
//!
//! Each message says what happened and what to do. Tables, profiles and `share` return it; drift and predictions cannot
//! fail.

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BalanceError {
    #[error(
        "none of the {devices} devices can take samples: each has a speed that is not a positive number or a \
         micro-batch of 0 samples; check the weights and the micro-batch caps"
    )]
    NoUsableDevice { devices: usize },

    #[error(
        "a sample of {sample_tokens} tokens fits no device: the largest micro-batch cap is {largest_cap_tokens} \
         tokens; raise max_tokens on a device to at least {sample_tokens}, or shorten the samples"
    )]
    SampleTooLong { sample_tokens: u32, largest_cap_tokens: u32 },

    #[error("a table of costs without a point says nothing; measure at least one micro-batch, or give `tokens_per_s`")]
    EmptyTable,

    #[error(
        "a point of a table of costs has {samples} samples of {tokens} tokens; a micro-batch has at least one of each: \
         remove the point"
    )]
    EmptyPoint { samples: u32, tokens: u32 },
}
