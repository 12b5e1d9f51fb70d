//! Continuing without ranks that were lost, or that leave (`leave.rs`). The ranks that are left regroup, agree on the newest
//! state that one of them has, and complete the update in progress: each keeps what it has computed
//! of it, and the samples of lost ranks are computed again. Called by the loop when a collective has
//! failed.
//!
//! A rank has applied update k, or its sum did not arrive in time. No rank is two updates apart: an
//! exchange needs all ranks. So the newest state of the ranks that are left is the state of all, or
//! one update ahead of some, which then copy it. Nothing else has to be agreed on: which samples
//! form an update never depends on the ranks.

use std::path::PathBuf;
use std::time::Instant;

use hetseq_balance::{Planner, Profile};
use hetseq_comm::{LostRank, RegroupRules};
use hetseq_metrics::Event;
use serde::{Deserialize, Serialize};

use crate::checkpoint::Restored;
use crate::config::RunConfig;
use crate::data::update_sampler::PlannedUpdate;
use crate::error::TrainError;
use crate::run::run_dir;
use crate::run_dir::audit::AuditLine;
use crate::run_dir::events::at_update;
use crate::trainer::header::MergedHeader;
use crate::trainer::session::Session;
use crate::trainer::stop::StopRequest;

use super::boundary::Boundary;
use super::in_progress::{InProgress, missing_samples};
use super::learner::Learner;
use super::setup::{broadcast_state, workers};
use super::{RunOutcome, Trainer, messages};

/// How far a rank is. The greatest is the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Progress {
    updates: u64,
    /// Validation and checkpoint after the last update are done.
    is_past_boundary: bool,
}

/// What a rank reports after regrouping.
#[derive(Serialize, Deserialize)]
struct RankState {
    progress: Progress,
    /// Devices of this rank that have failed, by index.
    failed_devices: Vec<usize>,
    /// The samples of the update after that in this rank's sum; none if it has not started it.
    held: Option<Vec<u32>>,
    /// Its parameters differ from those of the majority.
    is_odd: bool,
}

/// What the ranks that are left have agreed on.
struct Agreement {
    /// Devices of the group that have failed.
    retired: Vec<usize>,
    /// The update in progress, and the positions of the samples of it that are computed again. None
    /// if it starts from the beginning.
    missing: Option<(PlannedUpdate, Vec<usize>)>,
}

/// Ranks that were asked to leave.
struct Leavers {
    /// Each request, with the host of its rank.
    asked: Vec<(StopRequest, String)>,
    /// The shares of all ranks before.
    shares: Vec<(usize, f64)>,
}

/// Sets how the ranks of a new group decide who continues: by the run directory if all ranks share
/// it, else by majority. A collective.
pub(super) fn set_regroup_rules(session: &mut Session, config: &RunConfig) -> Result<(), TrainError> {
    if !config.elastic.enabled || session.group.world() == 1 {
        return Ok(());
    }
    let directory = shared_directory(session, config)?;
    let mode = if directory.is_some() { "the run directory decides" } else { "the majority decides" };
    tracing::debug!("if ranks are lost, the others continue; {mode}");
    session.group.set_regroup_rules(RegroupRules { directory, min_workers: config.elastic.min_workers });
    Ok(())
}

/// The run directory, if all ranks see in it what rank 0 writes. A collective.
fn shared_directory(session: &mut Session, config: &RunConfig) -> Result<Option<PathBuf>, TrainError> {
    let dir = run_dir(config);
    let path = dir.join("membership").join(format!("{:016x}.json", session.group.generation()));
    // Any content will do: the name is random.
    let content = format!("{{ \"world\": {} }}\n", session.group.world());
    let is_rank_0 = session.group.rank() == 0;
    let is_written = is_rank_0 && hetseq_fs::create_new(&path, content.as_bytes()).is_ok();
    session.group.barrier()?;
    let is_seen = fs_err::read_to_string(&path).is_ok_and(|seen| seen == content);
    let all = messages::all_gather(&mut session.group, &is_seen)?;
    if is_written {
        _ = fs_err::remove_file(&path);
    }
    Ok(all.into_iter().all(|is_seen| is_seen).then_some(dir))
}

impl Trainer {
    /// Whether the ranks that are left can continue after this error.
    pub(super) fn can_recover(&self, error: &TrainError) -> bool {
        self.config.elastic.enabled && matches!(error, TrainError::Comm(error) if error.is_lost_rank())
    }

    /// Continues without the ranks that leave, and without those that were lost (`error`). More may be
    /// lost meanwhile. If this rank leaves, returns how the run ended for it.
    pub(super) fn regroup(&mut self, error: Option<TrainError>) -> Result<Option<RunOutcome>, TrainError> {
        let started = Instant::now();
        let interrupted_s = if error.is_some() { self.observer.seconds_since_update() } else { 0.0 };
        if let Some(error) = error {
            tracing::debug!("{error}");
        }
        self.restore_boundary();
        self.hold_contribution()?;
        if self.is_leaving() {
            return self.leave_group().map(Some);
        }
        let host = |request: StopRequest| (request, self.session.group.host(request.rank).to_owned());
        let asked = std::mem::take(&mut self.leaving).into_iter().map(host).collect();
        let leavers = Leavers { asked, shares: self.planned_shares() };
        self.session.cluster.profile = self.pipeline.planner.profile();
        let mut lost = Vec::new();
        loop {
            let mut regrouped = self.session.regroup()?;
            lost.append(&mut regrouped.lost);
            if self.session.cluster.members.is_empty() {
                let reason =
                    "all ranks with devices are lost, and those that are left have none (run.devices = \"none\")";
                return Err(self.save_cut_off(reason.to_owned(), false));
            }
            self.stop.set_may_leave(self.session.group.world() > 1);
            match self.continue_in_new_group() {
                Ok(()) => {
                    if lost.iter().any(|lost| lost.has_failed) {
                        self.repeats_failed = Some(self.learner.updates() + 1);
                    }
                    self.emit_regrouped(lost, leavers, regrouped.regroups, (started, interrupted_s));
                    return Ok(None);
                }
                Err(error) if self.can_recover(&error) => tracing::debug!("{error}"),
                Err(error) => return Err(error),
            }
        }
    }

    /// Brings all ranks to one state and continues from it. A collective.
    pub(super) fn continue_in_new_group(&mut self) -> Result<(), TrainError> {
        self.session.group.at("regrouping");
        let agreement = self.agree_on_state()?;
        if self.session.group.rank() == 0 && !self.observer.events.is_enabled() {
            self.take_over_lead()?;
        }
        self.restart_pipeline(agreement)
    }

    /// Keeps what this rank has computed of the update in progress: waits for its devices, unless it
    /// has contributed already.
    pub(super) fn hold_contribution(&mut self) -> Result<(), TrainError> {
        let contributed = self.session.group.take_contribution();
        let Some(in_progress) = &mut self.in_progress else { return Ok(()) };
        match contributed {
            Some(sum) => in_progress.hold(sum),
            None if self.session.devices.is_computing() => {
                let sum = in_progress.complete(&mut self.session.devices.finish()?);
                in_progress.hold(sum);
            }
            // Cannot be: a sum that the devices have finished is a contribution.
            None => self.in_progress = None,
        }
        Ok(())
    }

    /// Brings all ranks to the newest state that one of them has. A collective.
    fn agree_on_state(&mut self) -> Result<Agreement, TrainError> {
        let state = RankState {
            progress: Progress { updates: self.learner.updates(), is_past_boundary: self.boundary.is_none() },
            failed_devices: self.session.devices.failed(),
            held: self.in_progress.as_ref().map(|in_progress| in_progress.samples.clone()),
            is_odd: self.replica_health.is_odd,
        };
        let ranks = messages::all_gather(&mut self.session.group, &state)?;
        let newest = ranks.iter().filter(|rank| !rank.is_odd).map(|rank| rank.progress).max();
        let newest = newest.ok_or_else(|| {
            let detail = "those of all ranks that are left are known to be wrong".to_owned();
            self.disagreement("the parameters", detail)
        })?;
        let oldest = ranks.iter().map(|rank| rank.progress).min().unwrap_or(newest).updates;
        let is_newest = |rank: &RankState| rank.progress == newest && !rank.is_odd;
        if let Some(root) = ranks.iter().position(is_newest)
            && !ranks.iter().all(is_newest)
        {
            self.copy_state(root, oldest, !is_newest(&state))?;
        }
        let missing = self.agree_on_missing(&ranks, &newest)?;
        let profile = messages::encode_json(&self.session.cluster.profile)?;
        let profile = self.session.group.broadcast_bytes(0, profile)?;
        self.session.cluster.profile = messages::decode_json::<Profile>(0, &profile)?;
        let first = |rank: usize| self.session.cluster.members.iter().take_while(|(other, _)| *other < rank).count();
        let failed = |(rank, state): (usize, &RankState)| -> Vec<usize> {
            state.failed_devices.iter().map(|device| first(rank) + device).collect()
        };
        Ok(Agreement { retired: ranks.iter().enumerate().flat_map(failed).collect(), missing })
    }

    /// Which samples of the update in progress no rank has computed. A collective.
    fn agree_on_missing(
        &mut self,
        ranks: &[RankState],
        newest: &Progress,
    ) -> Result<Option<(PlannedUpdate, Vec<usize>)>, TrainError> {
        let holds = |rank: &RankState| rank.progress == *newest && rank.held.is_some();
        let Some(holder) = ranks.iter().position(holds) else {
            self.in_progress = None;
            return Ok(None);
        };
        let header = self.in_progress.as_ref().map(|in_progress| &in_progress.header);
        let header = self.session.group.broadcast_bytes(holder, messages::encode(&header)?)?;
        if !holds(&ranks[self.session.group.rank()]) {
            self.in_progress = messages::decode::<Option<MergedHeader>>(holder, &header)?.map(InProgress::new);
        }
        let held: Vec<&[u32]> =
            ranks.iter().filter(|rank| holds(rank)).filter_map(|rank| rank.held.as_deref()).collect();
        let update = self.pipeline.sampler.at(&self.learner.state.cursor);
        let missing = update.and_then(|update| {
            let missing = missing_samples(&update.samples, &held)?;
            Some((update, missing))
        });
        missing.map(Some).ok_or_else(|| {
            self.disagreement("the samples of this update", "the ranks that are left hold other samples".to_owned())
        })
    }

    /// Sends the state of `root` to all ranks, for those that are behind; some are at update `oldest`
    /// only. A collective.
    fn copy_state(&mut self, root: usize, oldest: u64, is_behind: bool) -> Result<(), TrainError> {
        let is_root = self.session.group.rank() == root;
        let updates = self.learner.updates();
        let audit = self.observer.events.audit.as_ref().map_or_else(Vec::new, |audit| audit.recorded_after(oldest));
        let records = messages::encode_json(&(self.observer.recorded_after(oldest), audit))?;
        let records = self.session.group.broadcast_bytes(root, records)?;
        let start = is_root.then(|| {
            self.learner.complete_state();
            Restored {
                parameters: self.learner.parameters.to_vec(),
                slots: self.learner.slots().into_iter().map(|(name, values)| (name, values.to_vec())).collect(),
                state: self.learner.state.clone(),
                manifest: None,
            }
        });
        let boundary = messages::encode(&self.boundary.as_ref().map(Boundary::decisions))?;
        let boundary = self.session.group.broadcast_bytes(root, boundary)?;
        let Restored { parameters, slots, state, .. } = broadcast_state(&mut self.session, root, start)?;
        // The others have this state, and what they have computed since then.
        if !is_behind {
            return Ok(());
        }
        tracing::info!("continuing from {} with the state of rank {root}", at_update(state.cursor.updates));
        let mut optimizer = self.session.optimizer(&self.config)?;
        if !state.scalars.is_empty() {
            optimizer.restore(slots, state.scalars.clone())?;
        }
        self.checkpointing.follow_best(&state);
        self.learner = Learner::new(state, parameters, optimizer, &self.session.layout, &self.config.optim);
        let decisions = messages::decode::<Option<_>>(root, &boundary)?;
        self.boundary = decisions.map(|decisions| Boundary::new(decisions, &self.learner, &self.checkpointing));
        self.in_progress = None;
        self.replica_health.is_odd = false;
        self.observer.updates_done += self.learner.updates().saturating_sub(updates);
        let (events, audit): (Vec<Event>, Vec<AuditLine>) = messages::decode_json(root, &records)?;
        for event in events.into_iter().filter(|event| event.update().is_some_and(|at| at > updates)) {
            self.observer.record(event);
        }
        for line in audit.into_iter().filter(|line| line.update > updates) {
            self.observer.events.audit(|| line)?;
        }
        self.session.devices.load(&self.learner.parameters)
    }

    /// Passes an error of this rank on to the others. They continue without it, unless they would
    /// fail in the same way: with the same samples, or with the same disk.
    pub(super) fn report_failure(&mut self, error: &TrainError) {
        let is_repeated = self.repeats_failed == Some(self.learner.updates() + 1);
        let fails_everywhere = match error {
            TrainError::Device { .. } => is_repeated,
            TrainError::Io { .. } => self.session.group.rank() == 0 && self.session.group.shares_directory(),
            _ => false,
        };
        self.session.report_failure(error, fails_everywhere);
    }

    /// Saves the state of this rank, which must stop though nothing is wrong with it. The others may
    /// have done the same, or continue.
    pub(super) fn save_cut_off(&mut self, reason: String, others_continue: bool) -> TrainError {
        let saved = match self.learner.updates() {
            _ if others_continue => "This process ends here".to_owned(),
            0 => "There is nothing to save yet".to_owned(),
            updates => match self.checkpointing.save_alone(&mut self.learner) {
                Ok(path) => format!("Saved {}: the same command resumes from there", path.display()),
                Err(error) => format!("The state after {} could not be saved: {error}", at_update(updates)),
            },
        };
        TrainError::CutOff { reason, saved }
    }

    /// Plans and loads again from the current position, for the devices that are left.
    fn restart_pipeline(&mut self, agreement: Agreement) -> Result<(), TrainError> {
        let mut planner = Planner::new(&self.session.cluster.profile);
        agreement.retired.iter().for_each(|&device| planner.retire(device));
        let loader = self.session.loader(&self.config, Some(self.session.group.waker()))?;
        self.pipeline.restart(planner, loader, &self.learner.state.cursor);
        self.valid_loader = self.session.loader(&self.config, None)?;
        self.observer.rank = Default::default();
        let mut requests = self.config.run.prefetch + 1;
        if let Some((update, missing)) = &agreement.missing {
            self.pipeline.request_missing(update, missing, &self.session.cluster)?;
            requests -= 1;
        }
        for _ in 0..requests {
            self.request_next()?;
        }
        self.observer.start_update();
        Ok(())
    }

    fn emit_regrouped(
        &mut self,
        mut lost: Vec<LostRank>,
        Leavers { asked, shares }: Leavers,
        regroups: u64,
        (started, interrupted_s): (Instant, f64),
    ) {
        let update = self.learner.updates();
        self.observer.emit_workers(update);
        self.observer.replace_workers(workers(&self.session));
        for (StopRequest { rank, cause }, host) in asked {
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
        self.observer.events.emit(&Event::Regrouped {
            update,
            regroups,
            world: self.session.group.world(),
            devices: self.session.cluster.members.len(),
            seconds: started.elapsed().as_secs_f64(),
            interrupted_s,
        });
    }
}
