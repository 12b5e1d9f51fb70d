//! Golden tests: the numbers that PyTorch and transformers gave, recorded by `scripts/oracle-optim`.

mod optimizers;
mod schedules;
