//! Models as a whole: against what others compute (recorded by `scripts/record-fixtures`), and that a sample is computed the
//! same in whatever micro-batch.

#![allow(clippy::unwrap_used)]

mod bert;
mod parameters;
mod stream;
mod transformer;
