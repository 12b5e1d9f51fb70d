//! Updates that were requested from the loader and are not done yet. `planning.rs` adds to it,
//! `run.prefetch` updates ahead; the loop takes from it.

use std::collections::VecDeque;

use hetseq_balance::AssignedWork;
use hetseq_data::Cursor;

pub(crate) struct PrefetchQueue {
    /// Oldest first.
    pub(super) requested: VecDeque<RequestedUpdate>,
    /// The position of the next update to request.
    pub(super) next: Cursor,
    /// Devices without work in the last plan that was reported.
    pub(super) left_out: Vec<usize>,
}

/// The plan of a requested update.
#[derive(Default)]
pub(super) struct RequestedUpdate {
    /// Of all devices of the group.
    pub(super) work: Vec<AssignedWork>,
    pub(super) predicted_s: f64,
}

impl PrefetchQueue {
    pub(super) fn starting_at(cursor: &Cursor) -> Self {
        PrefetchQueue { requested: VecDeque::new(), next: cursor.clone(), left_out: Vec::new() }
    }
}
