//! Ranks that were asked to stop: they leave, and the others continue without them, or all save and
//! stop. Called by the loop between updates, when the merged header or a round of a validation says
//! that a request is due (`stop.rs`).
//!
//! At the boundary nothing is in progress, so a leave costs the others no sample: they regroup without
//! the ranks that leave, which still vote (`hetseq_comm::Group::leave`), and plan the next update
//! for the devices that are left. [`decide`] is pure, and all ranks decide the same.

use std::collections::BTreeSet;

use hetseq_metrics::{Event, ShareChange};

use crate::error::TrainError;
use crate::run_dir::events::at_update;
use crate::trainer::stop::{StopCause, StopRequest};

use super::{Pause, RunOutcome, Trainer, messages};

/// What follows from the requests of all ranks.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Continue,
    /// All ranks save and exit.
    Stop(StopRequest),
    /// These ranks leave, in rank order.
    Leave(Vec<StopRequest>),
}

/// When ranks may leave.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaveRules {
    /// `elastic.enabled`.
    pub(super) is_elastic: bool,
    pub(super) min_workers: usize,
}

/// Decides about the requests of all ranks. `computes` says which ranks have devices.
pub(super) fn decide(asked: &[Option<StopCause>], computes: &[bool], rules: LeaveRules) -> Verdict {
    let requests: Vec<StopRequest> =
        asked.iter().enumerate().filter_map(|(rank, cause)| Some(StopRequest { rank, cause: (*cause)? })).collect();
    let Some(first) = requests.first() else { return Verdict::Continue };
    if let Some(ending) = requests.iter().find(|request| request.cause.ends_run()) {
        return Verdict::Stop(*ending);
    }
    let stay = || asked.iter().zip(computes).filter(|(cause, _)| cause.is_none());
    let is_enough = stay().count() >= rules.min_workers && stay().any(|(_, computes)| *computes);
    if rules.is_elastic && is_enough { Verdict::Leave(requests) } else { Verdict::Stop(*first) }
}

impl Trainer {
    /// Asks all ranks what they were asked for, and decides. A collective.
    pub(super) fn confer(&mut self) -> Result<Verdict, TrainError> {
        self.session.group.at("the requests to stop");
        let asked = messages::all_gather(&mut self.session.group, &self.stop.get())?;
        let has_devices = |rank: usize| self.session.cluster.members.iter().any(|(owner, _)| *owner == rank);
        let computes: Vec<bool> = (0..asked.len()).map(has_devices).collect();
        let rules =
            LeaveRules { is_elastic: self.config.elastic.enabled, min_workers: self.config.elastic.min_workers };
        Ok(decide(&asked, &computes, rules))
    }

    /// Notes which ranks leave. After the barrier each rank knows that all others know it, too, so
    /// that any of them may begin to regroup. A collective.
    pub(super) fn prepare_leave(&mut self, leaving: Vec<StopRequest>) -> Result<Pause, TrainError> {
        self.leaving = leaving;
        self.session.group.barrier()?;
        Ok(Pause::Leave)
    }

    /// Whether this rank is one of those that leave.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.iter().any(|request| request.rank == self.session.group.rank())
    }

    /// Leaves the group. On rank 0, another rank takes over what only rank 0 does.
    pub(super) fn leave_group(&mut self) -> Result<RunOutcome, TrainError> {
        // The new lead must find the last checkpoint and all events.
        self.finish_saves()?;
        if self.session.group.shares_directory() {
            self.observer.events.close();
        }
        self.checkpointing.hand_over();
        self.stop_file_watch = None;
        self.session.group.leave()?;
        tracing::info!("left after {}: the other ranks continue", at_update(self.learner.updates()));
        Ok(RunOutcome::Left)
    }

    /// How the run has ended for this rank: whether it may start again when its machine is free. If the
    /// whole group has stopped, only its user knows when all machines are free.
    pub(super) fn unless_busy(&self, outcome: RunOutcome) -> RunOutcome {
        let is_busy = matches!(self.stop.get(), Some(StopCause::Busy(_)));
        match outcome {
            RunOutcome::Left if is_busy => RunOutcome::Busy,
            RunOutcome::Stopped if is_busy && self.session.group.world() == 1 => RunOutcome::Busy,
            outcome => outcome,
        }
    }

    /// The part of an update that each rank computes by the plan of the next one, with the numbers of
    /// the ranks at the start.
    pub(super) fn planned_shares(&self) -> Vec<(usize, f64)> {
        let shares = self.session.cluster.rank_shares(self.pipeline.next_work());
        self.session.cluster.original_ranks.iter().copied().zip(shares).collect()
    }

    /// How the shares of all ranks have changed since `before`.
    pub(super) fn share_changes(&self, before: &[(usize, f64)]) -> Vec<ShareChange> {
        let now = self.planned_shares();
        let share = |shares: &[(usize, f64)], number| {
            shares.iter().find(|(rank, _)| *rank == number).map_or(0.0, |(_, share)| *share)
        };
        let ranks: BTreeSet<usize> = before.iter().chain(&now).map(|(rank, _)| *rank).collect();
        ranks
            .into_iter()
            .map(|rank| ShareChange { rank, before: share(before, rank), after: share(&now, rank) })
            .collect()
    }

    /// The event of a rank that has left. `before` are the shares of the ranks then.
    pub(super) fn emit_left(&mut self, (rank, host, cause): (usize, String, StopCause), before: &[(usize, f64)]) {
        let (update, reason, shares) = (self.learner.updates(), cause.to_string(), self.share_changes(before));
        self.observer.events.emit(&Event::Left { update, rank, host, reason, shares });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::stop::BusyCondition;

    const TERM: Option<StopCause> = Some(StopCause::Terminate);
    const RULES: LeaveRules = LeaveRules { is_elastic: true, min_workers: 1 };

    fn request(rank: usize, cause: StopCause) -> StopRequest {
        StopRequest { rank, cause }
    }

    #[test]
    fn a_rank_leaves_if_the_others_can_continue() {
        let all = [true; 3];
        assert_eq!(decide(&[None; 3], &all, RULES), Verdict::Continue);
        let (first, last) = (request(0, StopCause::Terminate), request(2, StopCause::Terminate));
        assert_eq!(decide(&[TERM, None, None], &all, RULES), Verdict::Leave(vec![first]));
        assert_eq!(decide(&[TERM, None, TERM], &all, RULES), Verdict::Leave(vec![first, last]));
        // All, too few, without devices, not elastic.
        assert_eq!(decide(&[TERM; 3], &all, RULES), Verdict::Stop(first));
        let two = LeaveRules { min_workers: 2, ..RULES };
        assert_eq!(decide(&[TERM, None, TERM], &all, two), Verdict::Stop(first));
        assert_eq!(decide(&[None, None, TERM], &[false, false, true], RULES), Verdict::Stop(last));
        let rigid = LeaveRules { is_elastic: false, ..RULES };
        assert_eq!(decide(&[TERM, None, None], &all, rigid), Verdict::Stop(first));
        assert_eq!(decide(&[TERM], &[true], RULES), Verdict::Stop(first));
    }

    #[test]
    fn ctrl_c_and_hetseq_stop_end_the_run() {
        for cause in [StopCause::CtrlC, StopCause::StopCommand] {
            let asked = [TERM, None, Some(cause)];
            assert_eq!(decide(&asked, &[true; 3], RULES), Verdict::Stop(request(2, cause)));
        }
    }

    /// All combinations of four ranks: what they were asked, and whether they have devices.
    fn all_groups() -> impl Iterator<Item = Vec<(Option<StopCause>, bool)>> {
        use StopCause::{Busy, CtrlC, Terminate};
        let causes = [None, Some(CtrlC), Some(Terminate), Some(Busy(BusyCondition::Load))];
        let rank = move |code: usize| (causes[code / 2], code % 2 == 1);
        (0..8_usize.pow(4)).map(move |code| (0..4).map(|at| rank(code / 8_usize.pow(at) % 8)).collect())
    }

    #[test]
    fn enough_ranks_are_always_left() {
        for (group, min_workers) in all_groups().flat_map(|group| [0, 1, 3].map(|least| (group.clone(), least))) {
            let (asked, computes): (Vec<_>, Vec<_>) = group.iter().copied().unzip();
            let is_elastic = true;
            match decide(&asked, &computes, LeaveRules { is_elastic, min_workers }) {
                Verdict::Continue => assert!(asked.iter().all(Option::is_none)),
                Verdict::Stop(request) => assert_eq!(asked[request.rank], Some(request.cause)),
                Verdict::Leave(leaving) => {
                    let expected: Vec<_> = (0..4).filter(|&rank| asked[rank].is_some()).collect();
                    assert_eq!(leaving.iter().map(|request| request.rank).collect::<Vec<_>>(), expected);
                    assert!(leaving.iter().all(|request| !request.cause.ends_run()), "{group:?}");
                    let stay: Vec<_> = (0..4).filter(|&rank| asked[rank].is_none()).collect();
                    assert!(stay.len() >= min_workers && stay.iter().any(|&rank| computes[rank]), "{group:?}");
                }
            }
        }
    }
}
