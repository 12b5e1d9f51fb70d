//! From the training set to micro-batches in memory: which samples form the next update, loading
//! them ahead of time, and checking files against their checksums. Called by the trainer; the task
//! reads the samples.

pub(crate) mod data_check;
pub(crate) mod loader;
pub(crate) mod update_sampler;
