//! Golden tests against results of PyTorch and transformers, recorded by `scripts/record-fixtures`.

mod optimizers;
mod schedules;
