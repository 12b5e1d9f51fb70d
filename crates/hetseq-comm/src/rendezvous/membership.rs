//! Rank 0's list of joined ranks: admits each rank, compares it with rank 0, and sends messages to
//! all.
//!
//! A rank that differs from rank 0 cancels the run for all ranks, because the run cannot start
//! without it. An unknown program, a wrong secret or a duplicate rank is only rejected, and rank 0
//! keeps waiting. Ranks that join without a number get the free numbers when all are there, in the
//! order in which they joined. Used by `rank0.rs`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::acceptor::{AcceptEvent, Acceptor};
use super::handshake::{Handshake, HandshakeError, Hello, Member, MemberList, Message, shown_name, unexpected};
use super::late_join::LateJoin;
use super::rank0::Interruption;
use super::refusal::{Reader, Refusal};
use super::reject_log::RejectLog;
use super::{GRACE, HANDSHAKE_TIMEOUT, JoinContext, Joined, PAIRING_TIMEOUT, POLL_INTERVAL, Reminder};
use crate::error::named_ranks;
use crate::heartbeat_timing::HeartbeatTiming;
use crate::identity::Difference;

/// After the run is cancelled, how long to wait for late ranks and send them the reason.
const LINGER: Duration = Duration::from_secs(2);
/// How many rejections are kept for the error message.
const NOTES_LIMIT: usize = 8;
/// How many differing keys are named; with more, the ranks have nothing in common.
const DIFFERENCES_LIMIT: usize = 1000;

pub(super) type RankAcceptor = Acceptor<(Handshake, Hello)>;

/// A rank that has joined and waits for the start.
struct PendingRank {
    handshake: Handshake,
    name: String,
    listener: Option<SocketAddr>,
    timing: HeartbeatTiming,
    /// The generation of the group, once the start has been sent.
    started: Option<u64>,
}

pub(super) struct Membership<'a> {
    context: &'a JoinContext<'a>,
    /// One entry per rank; rank 0's stays empty.
    pending: Vec<Option<PendingRank>>,
    /// Ranks without a number, in the order in which they joined.
    unnumbered: Vec<PendingRank>,
    reject_log: RejectLog,
    /// The first rejections, for the error message.
    notes: Vec<String>,
}

impl<'a> Membership<'a> {
    pub(super) fn new(context: &'a JoinContext<'a>) -> Membership<'a> {
        let pending = (0..context.world).map(|_| None).collect();
        Membership { context, pending, unnumbered: Vec::new(), reject_log: RejectLog::default(), notes: Vec::new() }
    }

    /// Returns when every rank has joined, or when interrupted. An error cancels the run.
    pub(super) fn wait_for_all(
        &mut self,
        acceptor: &RankAcceptor,
        interruption: &mut dyn FnMut() -> Option<Interruption>,
    ) -> Result<Option<Interruption>, Refusal> {
        let mut reminder = Reminder::new(Instant::now());
        loop {
            let mut cancelled = None;
            for event in acceptor.poll(POLL_INTERVAL) {
                match (event, &cancelled) {
                    (AcceptEvent::Accepted((handshake, hello)), None) => cancelled = self.add(handshake, hello).err(),
                    (AcceptEvent::Accepted((handshake, _)), Some(refusal)) => {
                        drop(handshake.refuse(refusal.for_reader(Reader::Bystander)));
                    }
                    (AcceptEvent::Rejected { address, reason }, _) => self.note(address, &reason),
                }
            }
            if let Some(refusal) = cancelled {
                return Err(refusal);
            }
            if self.missing().is_empty() {
                // A rank that left while it waited may join again.
                self.pending.iter_mut().for_each(|rank| drop(rank.take_if(|rank| rank.handshake.is_closed())));
                self.unnumbered.retain(|rank| !rank.handshake.is_closed());
            }
            let missing = self.missing();
            if missing.is_empty() {
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

    /// Adds one rank or refuses it; an error cancels the run.
    fn add(&mut self, handshake: Handshake, hello: Hello) -> Result<(), Refusal> {
        let name = shown_name(&hello.name);
        let address = handshake.peer();
        let number = hello.rank.map(|rank| rank as usize);
        // Before anything is compared: a second rank 0 may belong to another run.
        if number == Some(0) {
            self.refuse_duplicate(handshake, 0, self.context.name.clone(), self.context.rendezvous.clone());
            return Ok(());
        }
        if let Some(refusal) = self.mismatch(&hello, &name) {
            // Sent here, because this rank is not in the list that `cancel` sends to.
            handshake.refuse(refusal.for_reader(Reader::Other));
            return Err(refusal);
        }
        let joined = PendingRank { handshake, name, listener: hello.listener, timing: hello.timing, started: None };
        let Some(rank) = number else {
            tracing::debug!(name = joined.name, %address, "a rank without a number joined");
            self.unnumbered.push(joined);
            return Ok(());
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
                        *entry = Some(joined);
                    }
                    Some(holder) => {
                        let (name, address) = (holder.name.clone(), holder.handshake.peer().to_string());
                        self.refuse_duplicate(joined.handshake, rank, name, address);
                    }
                }
            }
        }
        Ok(())
    }

    /// Refuses a rank whose number belongs to `holder`, or does not exist.
    fn refuse_duplicate(&mut self, handshake: Handshake, rank: usize, holder: String, holder_address: String) {
        let address = handshake.peer();
        let reason = handshake.refuse(Refusal::RankTaken { rank: rank as u64, name: holder, address: holder_address });
        self.note(address, &reason);
    }

    fn mismatch(&self, hello: &Hello, name: &str) -> Option<Refusal> {
        let mut differences = self.context.identity.differences(&hello.identity);
        if hello.world != self.context.world as u64 {
            differences.insert(
                0,
                Difference {
                    key: "world size".to_owned(),
                    on_zero: Some(self.context.world.to_string()),
                    on_other: Some(hello.world.to_string()),
                },
            );
        }
        // The refusal must fit into a message, whatever the peer's identity contains.
        differences.truncate(DIFFERENCES_LIMIT);
        differences.iter_mut().for_each(Difference::shorten);
        (!differences.is_empty()).then(|| Refusal::Mismatch {
            rank0_name: self.context.name.clone(),
            rank: hello.rank,
            name: name.to_owned(),
            differences,
            reader: Reader::Rank0,
        })
    }

    /// The numbers that are still free after ranks without a number have taken the first ones.
    fn missing(&self) -> Vec<usize> {
        let free = (1..self.pending.len()).filter(|rank| self.pending[*rank].is_none());
        free.skip(self.unnumbered.len()).collect()
    }

    /// Assigns the free numbers to the ranks without one.
    fn assign_numbers(&mut self) {
        let mut unnumbered = std::mem::take(&mut self.unnumbered).into_iter();
        for entry in self.pending.iter_mut().skip(1).filter(|entry| entry.is_none()) {
            *entry = unnumbered.next();
        }
        // More ranks joined at once than there are free numbers.
        for rank in unnumbered {
            rank.handshake.refuse(Refusal::AlreadyStarted { seconds_ago: 0, world: self.context.world as u64 });
        }
    }

    fn missing_refusal(&mut self, missing: Vec<usize>) -> Refusal {
        Refusal::Missing {
            ranks: missing.into_iter().map(|rank| rank as u64).collect(),
            world: self.context.world as u64,
            rendezvous: self.context.rendezvous.clone(),
            waited: self.context.options.join,
            notes: std::mem::take(&mut self.notes),
        }
    }

    fn note(&mut self, address: SocketAddr, reason: &HandshakeError) {
        let Some(line) = self.reject_log.note(Instant::now(), address, reason) else { return };
        tracing::warn!("{line}");
        if self.notes.len() < NOTES_LIMIT {
            self.notes.push(format!("{address} ({reason})"));
        }
    }

    pub(super) fn take_reject_log(&mut self) -> RejectLog {
        std::mem::take(&mut self.reject_log)
    }

    /// Sends all ranks the reason why the run cannot start, also those that join a little later:
    /// they would otherwise dial in vain until their own deadline.
    pub(super) fn cancel(&mut self, refusal: &Refusal, acceptor: &RankAcceptor) {
        if let Some(line) = self.reject_log.final_summary() {
            tracing::warn!("{line}");
        }
        let mut remaining = self.missing().len();
        if matches!(refusal, Refusal::Mismatch { .. }) {
            remaining = remaining.saturating_sub(1);
        }
        let refusal = refusal.for_reader(Reader::Bystander);
        self.refuse_all(&refusal);
        let linger = !matches!(refusal, Refusal::Missing { .. });
        let until = Instant::now() + LINGER;
        while linger && remaining > 0 && Instant::now() < until {
            for event in acceptor.poll(POLL_INTERVAL) {
                if let AcceptEvent::Accepted((handshake, _)) = event {
                    handshake.refuse(refusal.clone());
                    remaining = remaining.saturating_sub(1);
                }
            }
        }
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

    pub(super) fn into_joined(self, generation: u64, late_join: LateJoin) -> Joined {
        let (mut names, mut connections) = (vec![self.context.name.clone()], vec![None]);
        let mut timing = self.context.timing;
        for rank in self.pending.into_iter().flatten() {
            timing = timing.combine(rank.timing);
            names.push(rank.name);
            connections.push(Some(rank.handshake.into_connection()));
        }
        Joined { rank: 0, generation, names, timing, connections, late_join: Some(late_join) }
    }
}
