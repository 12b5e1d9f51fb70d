//! Drives the regroup machine (`regroup/`) over the links of a mesh, and continues as the next
//! generation. Called by `Group::regroup` after a collective has failed, and by `Group::admit`.
//!
//! The rank's own thread does it, like everything in `mesh.rs`: a rank that computes answers when
//! it next enters a collective. The others wait for it, as they would in any collective.

use std::time::{Duration, Instant};

use crate::error::{CommError, Phase};
use crate::frame::{Frame, FrameKind};
use crate::membership_file::MembershipFile;
use crate::mesh::Mesh;
use crate::regroup::{Arbiter, Input, Output, RankSet, Regroup, RegroupMessage, RegroupSetup, StopReason, Waiting};
use crate::rendezvous::{Arrival, MemberCard, Welcome};
use crate::transport::{LinkEnd, Received};

/// The longest sleep before a rank checks again.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);
/// How long a part without a quorum waits before it asks the directory, so that the larger part
/// asks first. Heartbeats are up to 2 s apart, so the larger part may notice a split that much
/// later; then it needs a moment to collect its answers.
const MINORITY_PAUSE: Duration = Duration::from_secs(3);
/// How long a rank that stops waits for its last messages to leave.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a rank that has left waits until the others know it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of frames of the failed collective to drop before the next peer has its turn.
const MAX_DROPPED_FRAMES: usize = 64;

/// How ranks decide who continues when some are lost. Equal on all ranks.
#[derive(Clone, Debug, Default)]
pub struct RegroupRules {
    /// The directory that all ranks share and that decides, if there is one. Otherwise more than
    /// half of the ranks decide, or half including rank 0.
    pub directory: Option<std::path::PathBuf>,
    /// The group stops if fewer are left.
    pub min_workers: usize,
}

/// The result of [`crate::Group::regroup`]. Ranks are numbers of the generation before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regrouped {
    /// The members of the new generation, in the order of their new numbers.
    pub survivors: Vec<usize>,
    pub lost: Vec<LostRank>,
    /// The machine of the newcomer that is the last member, if one was admitted.
    pub newcomer: Option<String>,
    /// How many times this group has regrouped.
    pub regroups: u64,
}

/// A rank that is no member of the next generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRank {
    pub rank: usize,
    pub host: String,
    pub reason: String,
    /// It reported that it failed, before it left.
    pub has_failed: bool,
}

/// What a rank wants besides continuing without the ranks that are lost.
pub(crate) enum Intent {
    Continue,
    /// The others continue without this rank, which is [`CommError::Excluded`] here.
    Leave,
    /// The newcomer becomes the last member.
    Admit(Box<Arrival>),
}

/// What the machine has decided.
enum Decision {
    Install(RankSet),
    Stop(StopReason),
}

impl Mesh {
    /// Agrees with the ranks that are left on a new membership, and continues with it. `cards` are
    /// those of all ranks, and become those of the new ones. If a newcomer is admitted, the rules are
    /// `next`.
    pub(crate) fn regroup(
        &mut self,
        rules: &RegroupRules,
        next: &RegroupRules,
        cards: &mut Vec<MemberCard>,
        intent: Intent,
    ) -> Result<Regrouped, CommError> {
        let (leaves, arrival) = match intent {
            Intent::Continue => (false, None),
            Intent::Leave => (true, None),
            Intent::Admit(arrival) => (false, Some(*arrival)),
        };
        let arbiter = if rules.directory.is_some() { Arbiter::Directory } else { Arbiter::Quorum };
        let has_newcomer = arrival.as_ref().is_some_and(Arrival::is_connected);
        let (rank, world, min_workers) = (self.rank, self.world(), rules.min_workers);
        let setup = RegroupSetup { rank, world, arbiter, min_workers, leaves, has_newcomer };
        self.transport.attend(true);
        // All ranks drop them, and they would delay the messages that follow.
        self.transport.cancel_queued();
        let result =
            self.decide(setup, rules).and_then(|decision| self.follow(decision, setup, (rules, next), cards, arrival));
        // Not before the decision is followed: frames of the next generation may be behind it,
        // which the heartbeat thread must not read as frames of this one.
        self.transport.attend(false);
        result
    }

    fn follow(
        &mut self,
        (decision, lost): (Decision, Vec<LostRank>),
        setup: RegroupSetup,
        (rules, next): (&RegroupRules, &RegroupRules),
        cards: &mut Vec<MemberCard>,
        arrival: Option<Arrival>,
    ) -> Result<Regrouped, CommError> {
        match decision {
            Decision::Install(members) => {
                self.install(&members);
                let survivors: Vec<usize> = members.below(setup.world).iter().collect();
                *cards = survivors.iter().filter_map(|&rank| cards.get(rank).cloned()).collect();
                let arrival = arrival.filter(|_| members.contains(setup.world));
                let newcomer = arrival.map(|arrival| self.receive(arrival, next, cards)).transpose()?;
                let regroups = self.generation - self.first_generation;
                Ok(Regrouped { survivors, lost, newcomer, regroups })
            }
            Decision::Stop(reason) => {
                if setup.leaves && matches!(reason, StopReason::Excluded { .. }) {
                    self.wait_for_the_others();
                }
                self.stop_without_the_others();
                Err(stopped(reason, setup.world, &lost, rules))
            }
        }
    }

    /// Tells a newcomer that it is a member, and connects it. Returns the name of its machine.
    fn receive(
        &mut self,
        arrival: Arrival,
        rules: &RegroupRules,
        cards: &mut Vec<MemberCard>,
    ) -> Result<String, CommError> {
        cards.push(arrival.card.clone());
        let (timing, host) = (arrival.timing, arrival.card.host.clone());
        let connection = arrival.welcome(Welcome {
            generation: self.generation,
            first_generation: self.first_generation,
            members: cards.clone(),
            timing: self.transport.timing().combine(timing),
            has_directory: rules.directory.is_some(),
        });
        self.add(host.clone(), connection, timing)?;
        Ok(host)
    }

    /// Runs the machine until it has decided. Returns the ranks that are lost to this one, too.
    fn decide(&mut self, setup: RegroupSetup, rules: &RegroupRules) -> Result<(Decision, Vec<LostRank>), CommError> {
        // A message that arrived before the end is processed first, by `hear`.
        let has_ended = |&peer: &usize| self.transport.ended(peer).is_some() && !self.transport.has_regroup(peer);
        let lost: RankSet = self.peers().filter(has_ended).collect();
        lost.iter().for_each(|peer| self.cut(peer, "this rank has lost its connection"));
        let (mut machine, mut outputs) = Regroup::start(setup, &lost);
        let mut progress = Instant::now();
        let mut messages = vec![0; self.world()];
        let mut log_at = progress + Duration::from_secs(2);
        loop {
            if let Some(error) = self.aborted() {
                return Err(error);
            }
            for output in std::mem::take(&mut outputs) {
                match output {
                    Output::Send { to, message } => self.send_regroup(to, &message),
                    Output::AskDirectory { members, has_quorum } => {
                        outputs.extend(machine.step(Input::Arbitrated(self.ask(rules, &members, has_quorum))));
                    }
                    Output::Install { members } => {
                        let lost = self.lost_ranks(|rank| !members.contains(rank));
                        return Ok((Decision::Install(members), lost));
                    }
                    Output::Stop(reason) => {
                        let lost = self.lost_ranks(|rank| machine.lost().contains(rank));
                        return Ok((Decision::Stop(reason), lost));
                    }
                }
            }
            if !outputs.is_empty() {
                continue;
            }
            let mut moved = self.transport.flush();
            for peer in self.peers() {
                moved |= self.hear(peer, &mut machine, &mut messages, &mut outputs);
                if !outputs.is_empty() {
                    // In order: a decision ends this loop before another message is read.
                    break;
                }
            }
            if moved {
                progress = Instant::now();
                continue;
            }
            let (peers, limit) = awaited(machine.waiting_for(), self.progress);
            if progress.elapsed() > limit {
                // Alive, but it does not answer: as in any collective.
                let reason = format!("it did not answer for {} s", limit.as_secs_f64());
                peers.into_iter().for_each(|peer| self.cut(peer, &reason));
            }
            if Instant::now() >= log_at {
                log_at += Duration::from_secs(10);
                tracing::info!("agreeing on the ranks that are left: {}", machine.waiting_for());
            }
            // Silence counts from the collective that has failed: a part of a split group has lost
            // all others at the same time, and need not wait for them one after the other.
            self.transport.wait(self.waiting_since, LONGEST_SLEEP);
        }
    }

    /// Passes on what has arrived from `peer`; returns whether there was anything. `messages`
    /// counts the messages of each peer.
    fn hear(&self, peer: usize, machine: &mut Regroup, messages: &mut [usize], outputs: &mut Vec<Output>) -> bool {
        if machine.lost().contains(peer) {
            return false;
        }
        if let Some(payload) = self.transport.take_regroup(peer) {
            messages[peer] += 1;
            match postcard::from_bytes::<RegroupMessage>(&payload) {
                Ok(message) if messages[peer] <= max_messages(self.world()) => {
                    outputs.extend(machine.step(Input::Received { from: peer, message }));
                }
                // The peer does not run this protocol: as if its link had failed.
                _ => self.cut(peer, "it sent invalid messages about the next generation"),
            }
            return true;
        }
        // Frames of the collective that has failed. Not all at once, and not as progress: a peer
        // that sends them without end must not keep this rank from checking its deadlines.
        for _ in 0..MAX_DROPPED_FRAMES {
            if !matches!(self.transport.next(peer), Received::Frame(_)) {
                break;
            }
        }
        if self.transport.has_regroup(peer) {
            return true;
        }
        if self.transport.ended(peer).is_none() {
            return false;
        }
        self.cut(peer, "this rank has lost its connection");
        outputs.extend(machine.step(Input::LinkLost(peer)));
        true
    }

    /// Ends the link to `peer`, so that the peer loses it, too.
    fn cut(&self, peer: usize, reason: &str) {
        self.transport.cut(peer, LinkEnd::Closed(reason.to_owned()));
    }

    /// The error if a rank has ended the run for all.
    fn aborted(&self) -> Option<CommError> {
        self.peers().find_map(|rank| match self.transport.ended(rank) {
            Some(LinkEnd::Aborted(reason)) => {
                let phase = Box::new(Phase { operation: "regroup", context: self.context.clone() });
                Some(CommError::Stopped { rank, host: self.hosts[rank].clone(), reason, phase })
            }
            _ => None,
        })
    }

    fn send_regroup(&self, to: usize, message: &RegroupMessage) {
        // Cannot fail: numbers into memory.
        if let Ok(bytes) = postcard::to_stdvec(message) {
            self.transport.push(to, &Frame::control(FrameKind::Regroup, bytes));
        }
    }

    fn ask(&self, rules: &RegroupRules, members: &RankSet, has_quorum: bool) -> Result<RankSet, String> {
        let Some(directory) = &rules.directory else { return Err("no directory is set".to_owned()) };
        let file = MembershipFile::of(directory, self.first_generation, self.generation + 1);
        if !has_quorum {
            std::thread::sleep(MINORITY_PAUSE);
        }
        file.decide(members, &self.hosts).map_err(|reason| format!("{}: {reason}", file.path().display()))
    }

    /// The ranks for which `is_lost` holds, with what is known about their end.
    fn lost_ranks(&self, is_lost: impl Fn(usize) -> bool) -> Vec<LostRank> {
        let lost = |rank: usize| {
            let end = self.transport.ended(rank);
            LostRank {
                rank,
                host: self.hosts[rank].clone(),
                has_failed: matches!(end, Some(LinkEnd::Failed(_))),
                reason: end.map_or_else(|| "another rank cannot reach it".to_owned(), describe),
            }
        };
        self.peers().filter(|&peer| is_lost(peer)).map(lost).collect()
    }

    /// After a leave by agreement: waits until the others have closed their links to this rank, which
    /// they do when they have the decision. If this rank closed its links with messages unread, the
    /// system would drop what it has not sent yet, and a member could miss the decision.
    fn wait_for_the_others(&mut self) {
        let deadline = Instant::now() + LEAVE_TIMEOUT;
        while self.peers().any(|peer| self.transport.ended(peer).is_none()) && Instant::now() < deadline {
            self.transport.flush();
            for peer in self.peers() {
                while matches!(self.transport.next(peer), Received::Frame(_))
                    || self.transport.take_regroup(peer).is_some()
                {}
            }
            self.transport.wait(Instant::now(), Duration::from_millis(10));
        }
    }

    /// Lets the last messages leave, then ends all links: the others must not wait for this rank.
    fn stop_without_the_others(&mut self) {
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        while self.peers().any(|peer| self.transport.ended(peer).is_none() && !self.transport.is_flushed(peer))
            && Instant::now() < deadline
        {
            self.transport.flush();
            self.transport.wait(Instant::now(), Duration::from_millis(10));
        }
        self.peers().for_each(|peer| self.cut(peer, "this rank has stopped"));
    }
}

/// Returns the ranks that must answer, and the limit for it. A proposer needs up to `progress` to
/// give up a rank that does not answer, and before that as long for each lower rank: who waits for
/// it must not give it up in that time.
fn awaited(waiting: Waiting, progress: Duration) -> (Vec<usize>, Duration) {
    match waiting {
        Waiting::Proposer(rank) => (vec![rank], progress.saturating_mul(rank as u32 + 2)),
        Waiting::Promises(ranks) | Waiting::Accepts(ranks) => (ranks.iter().collect(), progress),
        Waiting::Directory | Waiting::Nothing => (Vec::new(), progress),
    }
}

/// The most messages that a correct rank sends to another in one generation: a `Suspect`, a
/// `Prepare` and a `Promise` for each lost rank, and a few more.
fn max_messages(world: usize) -> usize {
    4 * world + 16
}

fn describe(end: LinkEnd) -> String {
    match end {
        LinkEnd::Goodbye => "it had finished and closed the group".to_owned(),
        LinkEnd::Aborted(reason) | LinkEnd::Failed(reason) => format!("it failed: {reason}"),
        LinkEnd::Closed(detail) => detail,
        LinkEnd::Silent(silence) => format!("it sent nothing for {} s", silence.as_secs_f64()),
        LinkEnd::Garbled(fault) => format!("it sent invalid data: {fault}"),
    }
}

fn stopped(reason: StopReason, world: usize, lost: &[LostRank], rules: &RegroupRules) -> CommError {
    let named: Vec<String> =
        lost.iter().map(|lost| format!("rank {} ({}): {}", lost.rank, lost.host, lost.reason)).collect();
    let lost = if named.is_empty() { "the connections to other ranks broke".to_owned() } else { named.join("; ") };
    match reason {
        StopReason::NoQuorum { reachable, .. } => CommError::NoQuorum { reachable, world, lost },
        StopReason::Excluded { .. } => CommError::Excluded { lost },
        StopReason::TooFew { left, min_workers } => CommError::TooFew { left, world, min_workers, lost },
        StopReason::DirectoryFailed(reason) => {
            let path = rules.directory.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
            CommError::MembershipFile { path, reason }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
