//! The public interface over both engines: collectives, meeting, and failing.

// Clippy's exception for tests does not reach functions beside the tests.
#![allow(clippy::unwrap_used)]

mod collectives;
mod directory;
mod failure;
mod late;
mod lines;
mod meeting;
mod outage;
mod ranks;
mod sealed;
mod secrets;
mod strangers;
