//! A process that joins a run while it trains, and the ranks that admit it.
//!
//! The newcomer has probed its devices and is connected to all ranks (`hetseq_comm`). Rank 0
//! announces it in a header, so that all ranks admit it at the same boundary between updates. In the
//! new generation it is a rank without state, which `recovery.rs` brings to the state of the others as
//! it does with any rank that is behind. If ranks are lost meanwhile, the same code continues
//! with those that are left. The prefetched updates are dropped, and planned again with its devices.

use std::time::Instant;

use hetseq_comm::{Candidate, CommError, RunningGroup};
use hetseq_metrics::Event;

use crate::checkpoint::Checkpoints;
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::profiling::cluster::{ClusterProfile, RankDevices};
use crate::run::run_dir;
use crate::run_dir::events::RunEvents;
use crate::trainer::session::Session;
use crate::trainer::state::{DataSummary, State};
use crate::trainer::stop::StopFlag;

use super::Trainer;
use super::checkpointing::Checkpointing;
use super::group_change::Regrouping;
use super::learner::Learner;
use super::observer::Observer;
use super::pipeline::Pipeline;
use super::setup::{Parts, run_constants, sampler, workers};

/// What a newcomer says about itself until the first update that it has done.
pub(super) struct Newcomer {
    pub(super) report: RankDevices,
}

/// A newcomer that has the state of the run.
pub(super) struct CaughtUp {
    pub(super) rank: usize,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

impl Trainer {
    /// Joins a run that trains. Returns when it has admitted this process, which then gets the state
    /// of the others in [`Trainer::train`].
    pub(crate) fn join(
        mut session: Session,
        running: RunningGroup,
        config: RunConfig,
        stop: StopFlag,
    ) -> Result<Trainer, TrainError> {
        // Before the others wait for this process.
        let mut state = State::new(&config, &session.task.data.fingerprint(), DataSummary::of(&session.task, &config));
        let optimizer = session.optimizer(&config)?;
        let sampler = sampler(&session, &config, &mut state)?;
        let parameters = vec![0.0; session.layout.len()];
        let report = session.cluster.report(session.group.rank());
        if let Err(error) = session.enter(running, &config, &stop) {
            let is_stopped = stop.is_set() && matches!(error, TrainError::Comm(CommError::GroupGone { .. }));
            return Err(match is_stopped {
                true => TrainError::CutOff {
                    reason: "this process was asked to stop before the run had admitted it".to_owned(),
                    saved: "There is nothing to save".to_owned(),
                    rejoin: Vec::new(),
                },
                false => error,
            });
        }
        stop.set_may_leave(true);
        let profile = hetseq_balance::Profile { ranks: Vec::new(), ..session.cluster.profile.clone() };
        let planner = session.planner();
        session.cluster = ClusterProfile::empty(profile);
        let dir = run_dir(&config);
        let parts = || -> Result<Parts, TrainError> {
            let events = RunEvents::start(&config, &dir, &session.group, 0)?;
            let loader = session.loader(&config, Some(session.group.waker()))?;
            let (constants, timeout) = (run_constants(&session), config.comm.progress_timeout());
            let store = Checkpoints::at(&dir);
            Ok(Parts {
                pipeline: Pipeline::new(sampler, planner, loader, &config.batch, &state.cursor),
                checkpointing: Checkpointing::new(&config.checkpoint, constants, store, None, None, timeout, &state),
                observer: Observer::new(events, workers(&session)),
                valid_loader: session.loader(&config, None)?,
                learner: Learner::new(state, parameters, optimizer, &session.layout, &config.optim),
                changed: Vec::new(),
            })
        };
        match parts() {
            Ok(parts) => Ok(parts.assemble(session, config, stop, Some(Newcomer { report }))),
            Err(error) => session.leave(Err(error)),
        }
    }

    /// Admits a newcomer between two updates, on all ranks after the same one.
    pub(super) fn admit(&mut self, candidate: Candidate) -> Result<(), TrainError> {
        let started = Instant::now();
        self.session.group.at("admitting a newcomer");
        self.session.cluster.profile = self.pipeline.planner.profile();
        let shares = self.planned_shares();
        let regrouped = self.session.admit(candidate)?;
        self.settle(regrouped, Regrouping { started, interrupted_s: 0.0, shares, leaving: Vec::new() })
    }

    /// Emits what it has cost to bring a newcomer to the state of the run.
    /// `before` are the shares of the ranks then.
    pub(super) fn emit_joined(&mut self, caught_up: &CaughtUp, started: Instant, before: &[(usize, f64)]) {
        let CaughtUp { rank, bytes, seconds } = *caught_up;
        let update = self.learner.updates();
        let number = self.session.cluster.original_ranks.get(rank).copied().unwrap_or(rank);
        let host = self.session.group.host(rank).to_owned();
        self.observer.events.emit(&Event::CaughtUp { update, rank: number, host: host.clone(), bytes, seconds });
        self.observer.events.emit(&Event::Joined {
            update,
            rank: number,
            host,
            world: self.session.group.world(),
            devices: self.session.cluster.members.len(),
            seconds: started.elapsed().as_secs_f64(),
            shares: self.share_changes(before),
        });
    }
}
