//! What the events say about a change of the group: who was lost, has left or has joined, and what it
//! has cost. Called by `recovery.rs` when the group trains again.

use std::time::Instant;

use hetseq_comm::LostRank;
use hetseq_metrics::Event;

use crate::trainer::stop::StopRequest;

use super::Trainer;
use super::newcomer::CaughtUp;
use super::setup::workers;

/// What is known about a change of the group before it.
pub(super) struct Regrouping {
    pub(super) started: Instant,
    /// From the end of the last update until the loss was noticed.
    pub(super) interrupted_s: f64,
    /// The part of an update that each rank computed, by its number at the start.
    pub(super) shares: Vec<(usize, f64)>,
    /// Ranks that were asked to leave, with their hosts.
    pub(super) leaving: Vec<(StopRequest, String)>,
}

impl Trainer {
    /// Emits who was lost, who has left and who has joined.
    pub(super) fn emit_changes(
        &mut self,
        mut lost: Vec<LostRank>,
        regroups: u64,
        caught_up: Option<&CaughtUp>,
        regrouping: Regrouping,
    ) {
        let update = self.learner.updates();
        self.observer.emit_workers(update);
        self.observer.replace_workers(workers(&self.session));
        let Regrouping { started, interrupted_s, shares, leaving } = regrouping;
        let is_change = caught_up.is_none() || !lost.is_empty();
        for (StopRequest { rank, cause }, host) in leaving {
            let rank = shares.get(rank).map_or(rank, |(number, _)| *number);
            if let Some(at) = lost.iter().position(|lost| lost.rank == rank) {
                lost.remove(at);
                self.emit_left((rank, host, cause), &shares);
            }
        }
        for LostRank { rank, host, reason, .. } in lost {
            tracing::debug!("lost rank {rank} ({host}): {reason}");
            self.observer.events.emit(&Event::Lost { update, rank, host, reason });
        }
        if is_change {
            self.observer.events.emit(&Event::Regrouped {
                update,
                regroups,
                world: self.session.group.world() - usize::from(caught_up.is_some()),
                devices: self.session.cluster.members.len(),
                seconds: started.elapsed().as_secs_f64(),
                interrupted_s,
            });
        }
        // It is a newcomer until its first update is done, in which more ranks may be lost.
        if let Some(caught_up) = caught_up {
            let joined = (self.session.cluster.original_ranks.get(caught_up.rank).copied(), update);
            if self.last_joined.replace(joined) != Some(joined) {
                self.emit_joined(caught_up, started, &shares);
            }
        }
    }
}
