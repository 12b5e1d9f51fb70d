//! Whole models: against the results of other programs (recorded by `scripts/record-fixtures`), and
//! independence of a sample from its micro-batch.

#![allow(clippy::unwrap_used)]

mod bert;
mod parameters;
mod recorded;
mod stream;
mod transformer;
