//! Rank 0's list of joined ranks: admits each rank, compares it with rank 0, and sends messages to
//! all.
//!
//! A refusal concerns one process only: an unknown program, a wrong secret, a duplicate rank, or a
//! rank that differs from rank 0. Rank 0 logs it and keeps waiting for the right process. If ranks
//! are missing at the deadline, the error names the refused ones. Ranks that join without a number get the free numbers when all are there, in the
//! order in which they joined. Used by `rank0.rs`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::acceptor::{AcceptEvent, Acceptor};
use super::door::Door;
use super::handshake::{
    Handshake, HandshakeError, Hello, Member, MemberList, Message, Request, shown_name, unexpected,
};
use super::mismatch::{Mismatch, Reader, RefusedRanks};
use super::rank0::Interruption;
use super::refusal::Refusal;
use super::reject_log::RejectLog;
use super::{GRACE, HANDSHAKE_TIMEOUT, JoinContext, Joined, PAIRING_TIMEOUT, POLL_INTERVAL, Reminder};
use crate::error::named_ranks;
use crate::heartbeat_timing::HeartbeatTiming;
use crate::secret::Credentials;

/// Timeout for telling a waiting rank why it waits. Rank 0 serves no other rank meanwhile.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);
/// How many rejections are kept for the error message.
const NOTES_LIMIT: usize = 8;

pub(super) type RankAcceptor = Acceptor<(Handshake, Request)>;

/// A rank that has joined and waits for the start.
struct PendingRank {
    handshake: Handshake,
    name: String,
    listener: Option<SocketAddr>,
    timing: HeartbeatTiming,
    /// The generation of the group, once the start has been sent.
    started: Option<u64>,
}

impl PendingRank {
    /// Tells the rank why it waits. If that fails, its connection is unusable, and it joins again.
    fn notify(&mut self, text: &str) -> bool {
        self.handshake.set_timeout(NOTIFY_TIMEOUT);
        self.handshake.send(&Message::Waiting(text.to_owned())).is_ok()
    }
}

pub(super) struct Membership<'a> {
    context: &'a JoinContext<'a>,
    /// One entry per rank; rank 0's stays empty.
    pending: Vec<Option<PendingRank>>,
    /// Ranks without a number, in the order in which they joined.
    unnumbered: Vec<PendingRank>,
    refused: RefusedRanks,
    reject_log: RejectLog,
    /// The first other rejections, for the error message.
    notes: Vec<String>,
}

impl<'a> Membership<'a> {
    pub(super) fn new(context: &'a JoinContext<'a>) -> Membership<'a> {
        let pending = (0..context.world).map(|_| None).collect();
        let (unnumbered, notes) = (Vec::new(), Vec::new());
        let (refused, reject_log) = (RefusedRanks::default(), RejectLog::default());
        Membership { context, pending, unnumbered, refused, reject_log, notes }
    }

    /// Returns when every rank has joined, or enough to start with, or when interrupted. Fails at the deadline.
    pub(super) fn wait_for_all(
        &mut self,
        acceptor: &RankAcceptor,
        interruption: &mut dyn FnMut() -> Option<Interruption>,
    ) -> Result<Option<Interruption>, Refusal> {
        let mut reminder = Reminder::new(Instant::now());
        loop {
            for event in acceptor.poll(POLL_INTERVAL) {
                match event {
                    AcceptEvent::Accepted((handshake, Request::Hello(hello))) => self.add(handshake, hello),
                    // A newcomer that expects an earlier group here, or that is early.
                    AcceptEvent::Accepted((handshake, _)) => drop(handshake.refuse(Refusal::NotYet)),
                    AcceptEvent::Rejected { address, reason } => self.note(address, &reason),
                }
            }
            if self.is_enough() {
                // A rank that left while it waited may join again.
                self.pending.iter_mut().for_each(|rank| drop(rank.take_if(|rank| rank.handshake.is_closed())));
                self.unnumbered.retain(|rank| !rank.handshake.is_closed());
            }
            let missing = self.missing();
            if self.is_enough() {
                self.assign_numbers();
                return Ok(None);
            }
            if let Some(interruption) = interruption() {
                return Ok(Some(interruption));
            }
            if self.context.time_left().is_zero() {
                return Err(self.missing_refusal(missing));
            }
            if let Some(line) = self.reject_log.summary(Instant::now()) {
                tracing::warn!("{line}");
            }
            if reminder.is_due(Instant::now()) {
                tracing::info!("waiting for {} of {}", named_ranks(&missing), self.context.world);
            }
        }
    }

    /// Adds one rank or refuses it.
    fn add(&mut self, handshake: Handshake, hello: Hello) {
        let name = shown_name(&hello.name);
        let address = handshake.peer();
        let number = hello.rank.map(|rank| rank as usize);
        // Before anything is compared: a second rank 0 may belong to another run.
        if number == Some(0) {
            return self.refuse_duplicate(handshake, 0, self.context.name.clone(), self.context.rendezvous.clone());
        }
        if let Some(mismatch) = Mismatch::with_rank0(self.context, &hello) {
            return self.refuse_mismatch(handshake, &mismatch);
        }
        let joined = PendingRank { handshake, name, listener: hello.listener, timing: hello.timing, started: None };
        let Some(rank) = number else {
            tracing::debug!(name = joined.name, %address, "a rank without a number joined");
            self.unnumbered.extend(self.informed(joined, None));
            return;
        };
        match self.pending.get_mut(rank) {
            None => {
                let (name, rendezvous) = (self.context.name.clone(), self.context.rendezvous.clone());
                self.refuse_duplicate(joined.handshake, rank, name, rendezvous);
            }
            Some(entry) => {
                // A restarted rank replaces its old connection.
                entry.take_if(|rank| rank.handshake.is_closed());
                match entry {
                    None => {
                        tracing::debug!(rank, name = joined.name, %address, "a rank joined");
                        self.pending[rank] = self.informed(joined, hello.rank);
                    }
                    Some(holder) => {
                        let (name, address) = (holder.name.clone(), holder.handshake.peer().to_string());
                        self.refuse_duplicate(joined.handshake, rank, name, address);
                    }
                }
            }
        }
    }

    /// Tells a new rank why it has to wait; `None` if its connection is closed.
    fn informed(&self, mut joined: PendingRank, number: Option<u64>) -> Option<PendingRank> {
        // The last rank does not wait.
        if self.missing().len() > 1 {
            let others =
                self.causes().into_iter().filter(|mismatch| mismatch.rank.is_none() || mismatch.rank != number);
            for mismatch in others {
                if !joined.notify(&self.waiting_text(&mismatch.for_reader(Reader::Bystander))) {
                    return None;
                }
            }
        }
        Some(joined)
    }

    /// Refuses a rank whose number belongs to `holder`, or does not exist.
    fn refuse_duplicate(&mut self, handshake: Handshake, rank: usize, holder: String, holder_address: String) {
        let address = handshake.peer();
        let reason = handshake.refuse(Refusal::RankTaken { rank: rank as u64, name: holder, address: holder_address });
        self.note(address, &reason);
    }

    /// Refuses a rank that differs from rank 0. The others keep waiting for the right one, so they
    /// all need to know why.
    fn refuse_mismatch(&mut self, handshake: Handshake, mismatch: &Mismatch) {
        let address = handshake.peer();
        let reason = handshake.refuse(Refusal::Mismatch(mismatch.for_reader(Reader::Other)));
        if !self.refused.add(mismatch) {
            // The same process again, perhaps restarted in a loop: counted, not repeated.
            self.log_rejection(address, &reason);
        } else if mismatch.rank.is_some_and(|rank| self.has_joined(rank)) {
            tracing::warn!("rejected {address}: {}; another process already has this rank", mismatch.summary());
        } else {
            tracing::warn!("rejected {address}: {}", self.waiting_text(mismatch));
            let text = self.waiting_text(&mismatch.for_reader(Reader::Bystander));
            self.pending.iter_mut().for_each(|entry| drop(entry.take_if(|rank| !rank.notify(&text))));
            self.unnumbered.retain_mut(|rank| rank.notify(&text));
        }
    }

    fn waiting_text(&self, mismatch: &Mismatch) -> String {
        let seconds = self.context.time_left().as_secs_f64().ceil();
        format!("{}; waiting up to {seconds} s for the right one", mismatch.summary())
    }

    fn has_joined(&self, rank: u64) -> bool {
        self.pending.get(rank as usize).is_some_and(Option::is_some)
    }

    /// The refused ranks that may be the cause of missing ranks.
    fn causes(&self) -> Vec<Mismatch> {
        self.refused.causes(|rank| self.has_joined(rank))
    }

    /// The numbers that are still free after ranks without a number have taken the first ones.
    fn missing(&self) -> Vec<usize> {
        let free = (1..self.pending.len()).filter(|rank| self.pending[*rank].is_none());
        free.skip(self.unnumbered.len()).collect()
    }

    /// Whether the group can start.
    fn is_enough(&self) -> bool {
        self.context.world - self.missing().len() >= self.context.start_with()
    }

    /// Assigns the free numbers to the ranks without one. If ranks are missing, which then join later,
    /// those behind them move up.
    fn assign_numbers(&mut self) {
        let mut unnumbered = std::mem::take(&mut self.unnumbered).into_iter();
        for entry in self.pending.iter_mut().skip(1).filter(|entry| entry.is_none()) {
            *entry = unnumbered.next();
        }
        // More ranks joined at once than there are free numbers.
        for rank in unnumbered {
            rank.handshake.refuse(Refusal::AlreadyStarted { seconds_ago: 0, world: self.context.world as u64 });
        }
        let joined = std::mem::take(&mut self.pending).into_iter().flatten();
        self.pending = std::iter::once(None).chain(joined.map(Some)).collect();
    }

    fn missing_refusal(&mut self, missing: Vec<usize>) -> Refusal {
        Refusal::Missing {
            ranks: missing.into_iter().map(|rank| rank as u64).collect(),
            world: self.context.world as u64,
            rendezvous: self.context.rendezvous.clone(),
            waited: self.context.options.join,
            notes: std::mem::take(&mut self.notes),
            refused: self.causes().into(),
        }
    }

    fn note(&mut self, address: SocketAddr, reason: &HandshakeError) {
        if self.log_rejection(address, reason) && self.notes.len() < NOTES_LIMIT {
            self.notes.push(format!("{address} ({reason})"));
        }
    }

    /// Logs or counts a rejection; returns whether it was logged.
    fn log_rejection(&mut self, address: SocketAddr, reason: &HandshakeError) -> bool {
        let line = self.reject_log.note(Instant::now(), address, reason);
        if let Some(line) = &line {
            tracing::warn!("{line}");
        }
        line.is_some()
    }

    pub(super) fn take_reject_log(&mut self) -> RejectLog {
        std::mem::take(&mut self.reject_log)
    }

    /// Sends all ranks that have joined the reason why the run cannot start.
    pub(super) fn cancel(&mut self, refusal: &Refusal) {
        if let Some(line) = self.reject_log.final_summary() {
            tracing::warn!("{line}");
        }
        self.refuse_all(&refusal.for_reader(Reader::Bystander));
    }

    /// Refuses all ranks that have joined, or aborts those that have received the start.
    pub(super) fn refuse_all(&mut self, refusal: &Refusal) {
        let ranks = self.pending.iter_mut().filter_map(Option::take).chain(self.unnumbered.drain(..));
        for mut rank in ranks {
            rank.handshake.set_timeout(HANDSHAKE_TIMEOUT);
            // Errors are ignored: a rank that is gone needs no reason.
            match rank.started {
                Some(generation) => rank.handshake.abort(generation, &refusal.clone().into_error("rank 0").to_string()),
                None => drop(rank.handshake.refuse(refusal.clone())),
            }
        }
    }

    /// Sends the member list, waits until all ranks are connected to each other, and sends the
    /// start.
    pub(super) fn start(&mut self, generation: u64) -> Result<(), Refusal> {
        let rank0 = Member { name: self.context.name.clone(), listener: None, timing: self.context.timing };
        let peers = self.pending.iter().flatten();
        let peers = peers.map(|rank| Member { name: rank.name.clone(), listener: rank.listener, timing: rank.timing });
        let members: Vec<Member> = std::iter::once(rank0).chain(peers).collect();
        let list = |your_rank| Message::MemberList(MemberList { generation, your_rank, members: members.clone() });
        self.send_all(list, PAIRING_TIMEOUT + GRACE, None)?;
        let mut waiting: Vec<usize> = (1..self.pending.len()).collect();
        while !waiting.is_empty() {
            let mut still_waiting = Vec::new();
            for rank in waiting {
                if !self.is_ready(rank)? {
                    still_waiting.push(rank);
                }
            }
            waiting = still_waiting;
            std::thread::sleep(if waiting.is_empty() { Duration::ZERO } else { POLL_INTERVAL });
        }
        self.send_all(|_| Message::Start, HANDSHAKE_TIMEOUT, Some(generation))
    }

    /// Whether `rank` has reported ready; an error if it reported a failure, left, or timed out.
    fn is_ready(&mut self, rank: usize) -> Result<bool, Refusal> {
        let Some(pending) = &mut self.pending[rank] else { return Ok(true) };
        if !pending.handshake.is_readable() && !pending.handshake.is_timed_out() {
            return Ok(false);
        }
        let reason = match pending.handshake.receive() {
            Ok(Message::Ready) => return Ok(true),
            Ok(Message::Failed(reason)) => reason,
            Ok(other) => unexpected("ready", &other).to_string(),
            Err(error) => error.to_string(),
        };
        Err(Refusal::Failed { rank: rank as u64, name: pending.name.clone(), reason })
    }

    /// Sends each rank its message. `started` is the generation of the group if this is the start.
    fn send_all(
        &mut self,
        message: impl Fn(u64) -> Message,
        timeout: Duration,
        started: Option<u64>,
    ) -> Result<(), Refusal> {
        for (rank, pending) in self.pending.iter_mut().enumerate() {
            let Some(pending) = pending else { continue };
            let rank = rank as u64;
            pending.handshake.set_timeout(timeout);
            pending.handshake.send(&message(rank)).map_err(|error| Refusal::Failed {
                rank,
                name: pending.name.clone(),
                reason: error.to_string(),
            })?;
            pending.started = started;
        }
        Ok(())
    }

    pub(super) fn into_joined(
        self,
        generation: u64,
        door: (Door, Vec<SocketAddr>),
        credentials: Credentials,
    ) -> Joined {
        let (mut names, mut connections) = (vec![self.context.name.clone()], vec![None]);
        let mut timing = self.context.timing;
        for rank in self.pending.into_iter().flatten() {
            timing = timing.combine(rank.timing);
            names.push(rank.name);
            connections.push(Some(rank.handshake.into_connection()));
        }
        Joined { rank: 0, generation, names, timing, connections, door: Some(door), credentials }
    }
}
