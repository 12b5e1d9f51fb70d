//! Rank 0's table: a seat for every rank, what each must have in common with rank 0, and the words to all of them.
//!
//! A rank that contradicts rank 0 ends the meeting for all, because the run cannot start without it; a stranger, a wrong
//! secret or a number taken twice is turned away and the meeting goes on. Those that come without a number get what
//! numbers are left when all are there, in the order in which they came. Used by `host.rs`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::doorkeeper::Doorkeeper;
use super::host::Interruption;
use super::reception::{Arrival, Reception};
use super::refusal::{Reader, Refusal};
use super::strangers::Strangers;
use super::talk::{Hello, Member, Message, Roster, Talk, TalkError, shown_name, unexpected};
use super::{GRACE, HANDSHAKE, Meeting, Met, PAIRING, POLL, Reminder};
use crate::error::named_ranks;
use crate::identity::Difference;
use crate::pace::Pace;

/// After calling the run off, how long to stay and tell those who come late.
const LINGER: Duration = Duration::from_secs(2);
/// How many refusals are remembered for the error message.
const NOTES: usize = 8;
/// How many differing keys are named; more means that the ranks have nothing in common.
const DIFFERENCES: usize = 1000;

pub(super) type Door = Reception<(Talk, Hello)>;

/// A rank that has come and waits.
struct Seat {
    talk: Talk,
    name: String,
    listener: Option<SocketAddr>,
    pace: Pace,
    /// The generation of the group, once it has the start.
    started: Option<u64>,
}

pub(super) struct Table<'a> {
    meeting: &'a Meeting<'a>,
    /// One per rank; rank 0's own stays empty.
    seats: Vec<Option<Seat>>,
    /// Those without a number, in the order of their coming.
    unnumbered: Vec<Seat>,
    strangers: Strangers,
    /// Of the first ones, for the error message.
    notes: Vec<String>,
}

impl<'a> Table<'a> {
    pub(super) fn new(meeting: &'a Meeting<'a>) -> Table<'a> {
        let seats = (0..meeting.world).map(|_| None).collect();
        Table { meeting, seats, unnumbered: Vec::new(), strangers: Strangers::default(), notes: Vec::new() }
    }

    /// Returns when every rank has a seat, when interrupted, or with why the run is called off.
    pub(super) fn seat_all(
        &mut self,
        door: &Door,
        interruption: &mut dyn FnMut() -> Option<Interruption>,
    ) -> Result<Option<Interruption>, Refusal> {
        let mut reminder = Reminder::new(Instant::now());
        loop {
            let mut called_off = None;
            for arrival in door.poll(POLL) {
                match (arrival, &called_off) {
                    (Arrival::Came((talk, hello)), None) => called_off = self.seat(talk, hello).err(),
                    (Arrival::Came((talk, _)), Some(refusal)) => {
                        drop(talk.refuse(Refusal::to(refusal, Reader::Bystander)));
                    }
                    (Arrival::TurnedAway { address, why }, _) => self.note(address, &why),
                }
            }
            if let Some(refusal) = called_off {
                return Err(refusal);
            }
            if self.missing().is_empty() {
                // One that left while it waited may come again.
                self.seats.iter_mut().for_each(|seat| drop(seat.take_if(|seat| seat.talk.is_gone())));
                self.unnumbered.retain(|seat| !seat.talk.is_gone());
            }
            let missing = self.missing();
            if missing.is_empty() {
                self.number();
                return Ok(None);
            }
            if let Some(interruption) = interruption() {
                return Ok(Some(interruption));
            }
            if self.meeting.left().is_zero() {
                return Err(self.never_came(missing));
            }
            if let Some(line) = self.strangers.summary(Instant::now()) {
                tracing::warn!("{line}");
            }
            if reminder.is_due(Instant::now()) {
                tracing::info!("waiting for {} of {}", named_ranks(&missing), self.meeting.world);
            }
        }
    }

    /// Seats one rank or turns it away; an error calls the run off.
    fn seat(&mut self, talk: Talk, hello: Hello) -> Result<(), Refusal> {
        let name = shown_name(&hello.name);
        let address = talk.peer();
        let place = hello.rank.map(|rank| rank as usize);
        // Before anything is compared: a second rank 0 may well be that of another run.
        if place == Some(0) {
            self.refuse_twin(talk, 0, self.meeting.name.clone(), self.meeting.at.clone());
            return Ok(());
        }
        if let Some(refusal) = self.mismatch(&hello, &name) {
            // Told here, because it has no seat from which it could hear it.
            talk.refuse(refusal.to(Reader::Other));
            return Err(refusal);
        }
        let seat = Seat { talk, name, listener: hello.listener, pace: hello.pace, started: None };
        let Some(rank) = place else {
            tracing::debug!(name = seat.name, %address, "a rank without a number has come");
            self.unnumbered.push(seat);
            return Ok(());
        };
        match self.seats.get_mut(rank) {
            None => self.refuse_twin(seat.talk, rank, self.meeting.name.clone(), self.meeting.at.clone()),
            Some(taken) => {
                // A rank that was restarted takes its own old place.
                taken.take_if(|seat| seat.talk.is_gone());
                match taken {
                    None => {
                        tracing::debug!(rank, name = seat.name, %address, "a rank has come");
                        *taken = Some(seat);
                    }
                    Some(holder) => {
                        let (name, address) = (holder.name.clone(), holder.talk.peer().to_string());
                        self.refuse_twin(seat.talk, rank, name, address);
                    }
                }
            }
        }
        Ok(())
    }

    /// Turns one away whose number is `holder`'s, or nobody's to take.
    fn refuse_twin(&mut self, talk: Talk, rank: usize, holder: String, at: String) {
        let address = talk.peer();
        let why = talk.refuse(Refusal::Taken { rank: rank as u64, name: holder, address: at });
        self.note(address, &why);
    }

    fn mismatch(&self, hello: &Hello, name: &str) -> Option<Refusal> {
        let mut differences = self.meeting.identity.differences(&hello.identity);
        if hello.world != self.meeting.world as u64 {
            differences.insert(
                0,
                Difference {
                    key: "world size".to_owned(),
                    on_zero: Some(self.meeting.world.to_string()),
                    on_other: Some(hello.world.to_string()),
                },
            );
        }
        // It must fit into a message, whatever a peer put into its identity.
        differences.truncate(DIFFERENCES);
        differences.iter_mut().for_each(Difference::shorten);
        (!differences.is_empty()).then(|| Refusal::Mismatch {
            zero_name: self.meeting.name.clone(),
            rank: hello.rank,
            name: name.to_owned(),
            differences,
            reader: Reader::Zero,
        })
    }

    /// The numbers that nobody has, when those without one have taken the first.
    fn missing(&self) -> Vec<usize> {
        let free = (1..self.seats.len()).filter(|rank| self.seats[*rank].is_none());
        free.skip(self.unnumbered.len()).collect()
    }

    /// Gives the numbers that are left to those without.
    fn number(&mut self) {
        let mut unnumbered = std::mem::take(&mut self.unnumbered).into_iter();
        for seat in self.seats.iter_mut().skip(1).filter(|seat| seat.is_none()) {
            *seat = unnumbered.next();
        }
        // More came at once than there are numbers left.
        for seat in unnumbered {
            seat.talk.refuse(Refusal::UnderWay { seconds_ago: 0, world: self.meeting.world as u64 });
        }
    }

    fn never_came(&mut self, missing: Vec<usize>) -> Refusal {
        Refusal::Missing {
            ranks: missing.into_iter().map(|rank| rank as u64).collect(),
            world: self.meeting.world as u64,
            rendezvous: self.meeting.at.clone(),
            waited: self.meeting.options.join,
            notes: std::mem::take(&mut self.notes),
        }
    }

    fn note(&mut self, address: SocketAddr, why: &TalkError) {
        let Some(line) = self.strangers.note(Instant::now(), address, why) else { return };
        tracing::warn!("{line}");
        if self.notes.len() < NOTES {
            self.notes.push(format!("{address} ({why})"));
        }
    }

    pub(super) fn take_strangers(&mut self) -> Strangers {
        std::mem::take(&mut self.strangers)
    }

    /// Tells everybody why there will be no run, also those who come a little later: they would
    /// otherwise dial in vain until their own deadline.
    pub(super) fn call_off(&mut self, refusal: &Refusal, door: &Door) {
        if let Some(line) = self.strangers.last_words() {
            tracing::warn!("{line}");
        }
        let mut untold = self.missing().len();
        if matches!(refusal, Refusal::Mismatch { .. }) {
            untold = untold.saturating_sub(1);
        }
        let refusal = refusal.to(Reader::Bystander);
        self.tell_all(&refusal);
        let linger = !matches!(refusal, Refusal::Missing { .. });
        let until = Instant::now() + LINGER;
        while linger && untold > 0 && Instant::now() < until {
            for arrival in door.poll(POLL) {
                if let Arrival::Came((talk, _)) = arrival {
                    talk.refuse(refusal.clone());
                    untold = untold.saturating_sub(1);
                }
            }
        }
    }

    pub(super) fn tell_all(&mut self, refusal: &Refusal) {
        let seats = self.seats.iter_mut().filter_map(Option::take).chain(self.unnumbered.drain(..));
        for mut seat in seats {
            seat.talk.allow(HANDSHAKE);
            // One that is gone needs no word.
            match seat.started {
                Some(generation) => seat.talk.abort(generation, &refusal.clone().into_error("rank 0").to_string()),
                None => drop(seat.talk.refuse(refusal.clone())),
            }
        }
    }

    /// Hands out the roster, waits until all are connected to each other, gives the start.
    pub(super) fn start(&mut self, generation: u64) -> Result<(), Refusal> {
        let zero = Member { name: self.meeting.name.clone(), listener: None, pace: self.meeting.pace };
        let others = self.seats.iter().flatten();
        let others = others.map(|seat| Member { name: seat.name.clone(), listener: seat.listener, pace: seat.pace });
        let members: Vec<Member> = std::iter::once(zero).chain(others).collect();
        let roster = |you| Message::Roster(Roster { generation, you, members: members.clone() });
        self.send_all(roster, PAIRING + GRACE, None)?;
        let mut waiting: Vec<usize> = (1..self.seats.len()).collect();
        while !waiting.is_empty() {
            let mut still = Vec::new();
            for rank in waiting {
                if !self.is_ready(rank)? {
                    still.push(rank);
                }
            }
            waiting = still;
            std::thread::sleep(if waiting.is_empty() { Duration::ZERO } else { POLL });
        }
        self.send_all(|_| Message::Start, HANDSHAKE, Some(generation))
    }

    /// Whether `rank` has reported; an error if it reported a failure, left, or took too long.
    fn is_ready(&mut self, rank: usize) -> Result<bool, Refusal> {
        let Some(seat) = &mut self.seats[rank] else { return Ok(true) };
        if !seat.talk.has_news() && !seat.talk.is_late() {
            return Ok(false);
        }
        let reason = match seat.talk.receive() {
            Ok(Message::Ready) => return Ok(true),
            Ok(Message::Failed(reason)) => reason,
            Ok(other) => unexpected("ready", &other).to_string(),
            Err(error) => error.to_string(),
        };
        Err(Refusal::Failed { rank: rank as u64, name: seat.name.clone(), reason })
    }

    /// To each its own; `starts` is the generation of the group that begins by it, if one does.
    fn send_all(
        &mut self,
        message: impl Fn(u64) -> Message,
        limit: Duration,
        starts: Option<u64>,
    ) -> Result<(), Refusal> {
        for (rank, seat) in self.seats.iter_mut().enumerate() {
            let Some(seat) = seat else { continue };
            let rank = rank as u64;
            seat.talk.allow(limit);
            seat.talk.send(&message(rank)).map_err(|error| Refusal::Failed {
                rank,
                name: seat.name.clone(),
                reason: error.to_string(),
            })?;
            seat.started = starts;
        }
        Ok(())
    }

    pub(super) fn into_met(self, generation: u64, keeper: Doorkeeper) -> Met {
        let (mut names, mut connections) = (vec![self.meeting.name.clone()], vec![None]);
        let mut pace = self.meeting.pace;
        for seat in self.seats.into_iter().flatten() {
            pace = pace.and(seat.pace);
            names.push(seat.name);
            connections.push(Some(seat.talk.into_connection()));
        }
        Met { rank: 0, generation, names, pace, connections, keeper: Some(keeper) }
    }
}
