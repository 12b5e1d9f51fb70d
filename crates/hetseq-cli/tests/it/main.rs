//! The `hetseq` binary as people run it: real processes, real files, ranks that meet over TCP on this machine.
//!
//! `cluster` starts and watches processes, `run_dir` reads what they left, `data` draws what they train on; the other
//! files are what they show.

// Clippy's exception for tests does not reach functions beside the tests.
#![allow(clippy::unwrap_used)]

mod cluster;
mod data;
mod reference;
mod run_dir;

mod attacks;
mod average;
mod balance;
mod balance_commands;
mod bench;
mod bench_comm;
mod bert;
mod damage;
mod devices;
mod directory;
mod divergence;
mod early_stop;
mod eval;
mod exact;
mod from_flags;
mod gpu;
mod help;
mod images;
mod optimizers;
mod overrides;
mod precision;
mod prep;
mod refusals;
mod resume;
mod score;
mod signals;
mod storage;
mod texts;
mod translate_prep;
mod translation;
mod unread;
mod wire;
