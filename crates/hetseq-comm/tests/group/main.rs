//! Tests of the public interface, over TCP and over socketpairs: collectives, rendezvous and
//! failures.

// Clippy's exception for tests does not cover helper functions.
#![allow(clippy::unwrap_used)]

mod collectives;
mod directory;
mod encryption;
mod failure;
mod late;
mod link_speeds;
mod network;
mod newcomers;
mod outage;
mod partition;
mod ranks;
mod reference;
mod regroup;
mod rejections;
mod rendezvous;
mod secrets;
