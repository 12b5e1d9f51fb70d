//! Golden tests: the numbers that PyTorch and transformers gave, recorded by `scripts/record-fixtures`.

mod optimizers;
mod schedules;
