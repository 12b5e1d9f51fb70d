//! Tests of the `hetseq` binary: real processes, real files, and ranks that communicate over TCP on
//! this machine.
//!
//! `cluster` starts processes and waits for them, `run_dir` reads the run directory, `data` draws
//! training data, and `reference` trains the runs to compare with. The other files are tests.

// Clippy's exception for tests does not cover helper functions.
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
mod directory_rendezvous;
mod divergence;
mod docs;
mod early_stop;
mod elastic;
mod elastic_join;
mod elastic_restart;
mod engines;
mod entity_linking;
mod eval;
mod exact;
mod fine_tuning;
mod frozen;
mod gpu;
mod healing;
mod help;
mod images;
mod leaving;
mod migrate;
mod mpi;
mod optimizers;
mod overrides;
mod precision;
mod prep;
mod refusals;
mod renamed;
mod resume;
mod score;
mod selftest;
mod signals;
mod source_rules;
mod stop_validation;
mod storage;
mod texts;
mod translate_prep;
mod translation;
mod unread_stderr;
mod voters;
mod wire_dtype;
mod wrong_inputs;
