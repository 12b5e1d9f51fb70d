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

use hetseq_balance::Planner;
use hetseq_comm::{RegroupRules, Regrouped};
use hetseq_metrics::Event;
use serde::{Deserialize, Serialize};

use crate::checkpoint::Restored;
use crate::config::RunConfig;
use crate::data::update_sampler::PlannedUpdate;
use crate::error::TrainError;
use crate::profiling::cluster::{RankDevices, SharedCluster};
use crate::run::run_dir;
use crate::run_dir::audit::AuditLine;
use crate::run_dir::events::at_update;
use crate::trainer::header::MergedHeader;
use crate::trainer::session::Session;
use crate::trainer::stop::StopRequest;

use super::boundary::Boundary;
use super::group_change::Regrouping;
use super::in_progress::{InProgress, missing_samples};
use super::learner::Learner;
use super::newcomer::CaughtUp;
use super::setup::broadcast_state;
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
    /// Of a rank that has no state yet: its devices, as JSON.
    newcomer: Option<String>,
}

impl RankState {
    fn has_state(&self) -> bool {
        self.newcomer.is_none()
    }
}

/// What rank 0 tells the others besides the state of the run.
#[derive(Serialize, Deserialize)]
struct SharedPlan {
    cluster: SharedCluster,
    start_update: u64,
    bad_updates: u64,
}

/// What the ranks that are left have agreed on.
struct Agreement {
    /// Devices of the group that have failed.
    retired: Vec<usize>,
    /// The update in progress, and the positions of the samples of it that are computed again. None
    /// if it starts from the beginning.
    missing: Option<(PlannedUpdate, Vec<usize>)>,
    /// A newcomer that has got the state.
    caught_up: Option<CaughtUp>,
}

/// Sets how the ranks of a new group decide who continues: by the run directory if all ranks share
/// it, else by majority. A collective.
pub(super) fn set_regroup_rules(session: &mut Session, config: &RunConfig) -> Result<(), TrainError> {
    if !config.elastic.enabled || session.group.is_alone() {
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
        let leaving = std::mem::take(&mut self.leaving).into_iter().map(host).collect();
        let shares = self.planned_shares();
        if self.newcomer.is_none() {
            self.session.cluster.profile = self.pipeline.planner.profile();
        }
        let regrouped = self.session.regroup()?;
        self.settle(regrouped, Regrouping { started, interrupted_s, shares, leaving })?;
        Ok(None)
    }

    /// Continues in the new generation, or, if ranks are lost meanwhile, in the one after it.
    pub(super) fn settle(&mut self, mut regrouped: Regrouped, regrouping: Regrouping) -> Result<(), TrainError> {
        let mut lost = Vec::new();
        loop {
            lost.append(&mut regrouped.lost);
            if self.session.cluster.members.is_empty() && self.newcomer.is_none() {
                let reason =
                    "all ranks with devices are lost, and those that are left have none (run.devices = \"none\")";
                return Err(self.save_cut_off(reason.to_owned(), false));
            }
            self.stop.set_may_leave(self.session.group.world() > 1);
            let error = match self.continue_in_new_group() {
                Ok(caught_up) => {
                    if lost.iter().any(|lost| lost.has_failed) {
                        self.repeats_failed = Some(self.learner.updates() + 1);
                    }
                    self.emit_changes(lost, regrouped.regroups, caught_up.as_ref(), regrouping);
                    return Ok(());
                }
                Err(error) => error,
            };
            if !self.can_recover(&error) {
                return Err(error);
            }
            tracing::debug!("{error}");
            regrouped = self.session.regroup()?;
        }
    }

    /// Brings all ranks to one state and continues from it. Returns the newcomer that has got it. A
    /// collective.
    pub(super) fn continue_in_new_group(&mut self) -> Result<Option<CaughtUp>, TrainError> {
        self.session.group.at("regrouping");
        let mut agreement = self.agree_on_state()?;
        if self.session.group.rank() == 0 && !self.observer.events.is_enabled() {
            self.take_over_lead()?;
        }
        let caught_up = agreement.caught_up.take();
        self.restart_pipeline(agreement)?;
        Ok(caught_up)
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
            newcomer: self.newcomer.as_ref().map(|newcomer| encode_report(&newcomer.report)).transpose()?,
        };
        let ranks: Vec<RankState> = messages::all_gather(&mut self.session.group, &state)?;
        if !ranks.iter().any(RankState::has_state) {
            let reason = "all ranks that have the state of the run are lost, and this one has just joined it";
            return Err(self.save_cut_off(reason.to_owned(), true));
        }
        let newest = ranks.iter().filter(|rank| rank.has_state() && !rank.is_odd).map(|rank| rank.progress).max();
        let newest = newest.ok_or_else(|| {
            let detail = "those of all ranks that are left are known to be wrong".to_owned();
            self.disagreement("the parameters", detail)
        })?;
        let oldest = ranks.iter().map(|rank| rank.progress).min().unwrap_or(newest).updates;
        let is_newest = |rank: &RankState| rank.progress == newest && !rank.is_odd && rank.has_state();
        let copying = Instant::now();
        if let Some(root) = ranks.iter().position(is_newest)
            && !ranks.iter().all(is_newest)
        {
            self.copy_state(root, oldest, !is_newest(&state))?;
        }
        let missing = self.agree_on_missing(&ranks, &newest)?;
        let seconds = copying.elapsed().as_secs_f64();
        let newcomer = ranks.iter().position(|rank| !rank.has_state());
        let bytes =
            4 * (self.session.layout.len() + self.learner.slots().iter().map(|(_, slot)| slot.len()).sum::<usize>());
        self.agree_on_cluster(&ranks)?;
        let first = |rank: usize| self.session.cluster.members.iter().take_while(|(other, _)| *other < rank).count();
        let failed = |(rank, state): (usize, &RankState)| -> Vec<usize> {
            state.failed_devices.iter().map(|device| first(rank) + device).collect()
        };
        let retired = ranks.iter().enumerate().flat_map(failed).collect();
        // All compare with the next header. Not only if one is due: of the last checksum, some ranks may
        // have sent theirs in an exchange that failed, and others not.
        self.learner.new_checksum = Some(self.learner.checksum());
        let caught_up = newcomer.map(|rank| CaughtUp { rank, bytes: bytes as u64, seconds });
        Ok(Agreement { retired, missing, caught_up })
    }

    /// All ranks take the measurements of rank 0, and add the devices of newcomers. A collective.
    fn agree_on_cluster(&mut self, ranks: &[RankState]) -> Result<(), TrainError> {
        let plan = SharedPlan {
            cluster: self.session.cluster.shared(),
            start_update: self.pipeline.start_update(),
            bad_updates: self.bad_updates,
        };
        let plan = self.session.group.broadcast_bytes(0, messages::encode_json(&plan)?)?;
        let SharedPlan { cluster, start_update, bad_updates } = messages::decode_json(0, &plan)?;
        self.pipeline.set_start_update(start_update);
        self.bad_updates = bad_updates;
        let own = self.session.group.rank();
        self.session.cluster.follow(cluster, own);
        for (rank, state) in ranks.iter().enumerate() {
            // A newcomer that was lost before its first update, and is one again, is known already.
            if let Some(report) = state.newcomer.as_ref().filter(|_| rank >= self.session.cluster.original_ranks.len())
            {
                let host = self.session.group.host(rank).to_owned();
                self.session.cluster.add(host, messages::decode_json(rank, report.as_bytes())?, own);
            }
        }
        if self.session.cluster.original_ranks.len() != ranks.len() {
            let detail = format!("rank 0 knows {} of {}", self.session.cluster.original_ranks.len(), ranks.len());
            return Err(self.disagreement("the ranks", detail));
        }
        if self.newcomer.is_some() {
            self.session.emulate_faults(&self.config, self.session.cluster.original_ranks[own]);
        }
        Ok(())
    }

    /// Which samples of the update in progress no rank has computed. A collective.
    fn agree_on_missing(
        &mut self,
        ranks: &[RankState],
        newest: &Progress,
    ) -> Result<Option<(PlannedUpdate, Vec<usize>)>, TrainError> {
        let holds = |rank: &RankState| rank.progress == *newest && rank.held.is_some() && rank.has_state();
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
        let rejoin = if others_continue { self.session.group.addresses() } else { Vec::new() };
        TrainError::CutOff { reason, saved, rejoin }
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
}

fn encode_report(report: &RankDevices) -> Result<String, TrainError> {
    serde_json::to_string(report).map_err(|error| TrainError::Encode { reason: error.to_string() })
}
