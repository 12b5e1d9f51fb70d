//! Rank 0's part: listen, seat every rank, compare what they run, hand out the roster, give the start.
//!
//! A rank that contradicts this one ends the meeting for all, because the run cannot start without it;
//! a stranger, a wrong secret or a number taken twice is turned away and the meeting goes on.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::admission::Limits;
use super::doorkeeper::Doorkeeper;
use super::greeting::{self, Party};
use super::reception::{Arrival, Reception};
use super::refusal::Refusal;
use super::strangers::Strangers;
use super::talk::{Hello, Member, Message, Roster, Talk, TalkError, shown_name, unexpected};
use super::{GRACE, HANDSHAKE, Meeting, Met, PAIRING, POLL, Reminder};
use crate::error::{CommError, named_ranks};
use crate::identity::Difference;
use crate::secret::random;
use crate::socket;

/// After calling the run off, how long to stay and tell those who come late.
const LINGER: Duration = Duration::from_secs(2);
/// How many refusals are remembered for the error message.
const NOTES: usize = 8;
/// How many differing keys are named; more means that the ranks have nothing in common.
const DIFFERENCES: usize = 1000;

type Door = Reception<(Talk, Hello)>;

/// A rank that has come and waits.
struct Seat {
    talk: Talk,
    name: String,
    listener: Option<SocketAddr>,
}

/// Gathers the ranks.
pub(super) fn host(meeting: &Meeting<'_>) -> Result<Met, CommError> {
    let ip = socket::chosen_ip(meeting.options)?;
    let listener = socket::listen_at(ip, meeting.port)?;
    let (credentials, secret_file) = meeting.issue_secret()?;
    let encrypt = meeting.options.encrypt;
    let greet = move |talk| {
        let party = Party { rank: 0, generation: 0, credentials: &credentials, encrypt };
        let (mut talk, rank) = greeting::answer(talk, &party)?;
        match talk.receive()? {
            Message::Hello(hello) if hello.rank == rank => Ok((talk, hello)),
            other => Err(unexpected("hello of the rank that greeted", &other)),
        }
    };
    let door = Door::open(listener, Limits::gathering(meeting.world), greet)?;
    let mut table = Table::new(meeting);
    if let Err(refusal) = table.seat_all(&door) {
        table.call_off(&refusal, &door);
        return Err(refusal.into_error(0, "rank 0"));
    }
    // The roster is final: whoever else comes is told so.
    let strangers = std::mem::take(&mut table.strangers);
    let keeper = Doorkeeper::start(door, strangers, meeting.world, secret_file)?;
    let drawn = random().map_err(|source| CommError::System { what: "give random numbers", reason: source })?;
    // 0 stands for "no group yet".
    let generation = u64::from_le_bytes(drawn).max(1);
    match table.start(generation) {
        Ok(()) => Ok(table.into_met(generation, keeper)),
        Err(refusal) => {
            table.tell_all(&refusal);
            Err(refusal.into_error(0, "rank 0"))
        }
    }
}

struct Table<'a> {
    meeting: &'a Meeting<'a>,
    /// One per rank; rank 0's own stays empty.
    seats: Vec<Option<Seat>>,
    strangers: Strangers,
    /// Of the first ones, for the error message.
    notes: Vec<String>,
}

impl<'a> Table<'a> {
    fn new(meeting: &'a Meeting<'a>) -> Table<'a> {
        let seats = (0..meeting.world).map(|_| None).collect();
        Table { meeting, seats, strangers: Strangers::default(), notes: Vec::new() }
    }

    /// Returns when every rank has a seat, or with why the run is called off.
    fn seat_all(&mut self, door: &Door) -> Result<(), Refusal> {
        let start = Instant::now();
        let mut reminder = Reminder::new(start);
        loop {
            let mut called_off = None;
            for arrival in door.poll(POLL) {
                match (arrival, &called_off) {
                    (Arrival::Came((talk, hello)), None) => called_off = self.seat(talk, hello).err(),
                    (Arrival::Came((talk, _)), Some(refusal)) => drop(talk.refuse(Refusal::clone(refusal))),
                    (Arrival::TurnedAway { address, why }, _) => self.note(address, &why),
                }
            }
            if let Some(refusal) = called_off {
                return Err(refusal);
            }
            if self.missing().is_empty() {
                // One that left while it waited may come again.
                for seat in &mut self.seats {
                    seat.take_if(|seat| seat.talk.is_gone());
                }
            }
            let missing = self.missing();
            if missing.is_empty() {
                return Ok(());
            }
            if start.elapsed() >= self.meeting.options.join {
                return Err(Refusal::Missing {
                    ranks: missing.into_iter().map(|rank| rank as u64).collect(),
                    world: self.meeting.world as u64,
                    rendezvous: self.meeting.address(),
                    waited: self.meeting.options.join,
                    notes: std::mem::take(&mut self.notes),
                });
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
        if let Some(refusal) = self.mismatch(&hello, &name) {
            // Told here, because it has no seat from which it could hear it.
            talk.refuse(refusal.clone());
            return Err(refusal);
        }
        let holder = match self.seats.get_mut(hello.rank as usize) {
            Some(seat) if hello.rank != 0 => {
                // A rank that was restarted takes its own old place.
                seat.take_if(|seat| seat.talk.is_gone());
                match seat {
                    None => {
                        tracing::debug!(rank = hello.rank, name, %address, "a rank has come");
                        *seat = Some(Seat { talk, name, listener: hello.listener });
                        return Ok(());
                    }
                    Some(seat) => (seat.name.clone(), seat.talk.peer().to_string()),
                }
            }
            _ => (self.meeting.name.clone(), self.meeting.address()),
        };
        let why = talk.refuse(Refusal::Taken { rank: hello.rank, name: holder.0, address: holder.1 });
        self.note(address, &why);
        Ok(())
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
        })
    }

    fn missing(&self) -> Vec<usize> {
        (1..self.seats.len()).filter(|rank| self.seats[*rank].is_none()).collect()
    }

    fn note(&mut self, address: SocketAddr, why: &TalkError) {
        let Some(line) = self.strangers.note(Instant::now(), address, why) else { return };
        tracing::warn!("{line}");
        if self.notes.len() < NOTES {
            self.notes.push(format!("{address} ({why})"));
        }
    }

    /// Tells everybody why there will be no run, also those who come a little later: they would
    /// otherwise dial in vain until their own deadline.
    fn call_off(&mut self, refusal: &Refusal, door: &Door) {
        if let Some(line) = self.strangers.last_words() {
            tracing::warn!("{line}");
        }
        let mut told = vec![false; self.seats.len()];
        told[0] = true;
        if let Refusal::Mismatch { rank, .. } = refusal {
            mark(&mut told, *rank);
        }
        for (rank, seat) in self.seats.iter().enumerate() {
            told[rank] |= seat.is_some();
        }
        self.tell_all(refusal);
        let linger = !matches!(refusal, Refusal::Missing { .. });
        let until = Instant::now() + LINGER;
        while linger && told.contains(&false) && Instant::now() < until {
            for arrival in door.poll(POLL) {
                if let Arrival::Came((talk, hello)) = arrival {
                    talk.refuse(refusal.clone());
                    mark(&mut told, hello.rank);
                }
            }
        }
    }

    fn tell_all(&mut self, refusal: &Refusal) {
        for seat in &mut self.seats {
            if let Some(mut seat) = seat.take() {
                seat.talk.allow(HANDSHAKE);
                // One that is gone needs no word.
                let _ = seat.talk.refuse(refusal.clone());
            }
        }
    }

    /// Hands out the roster, waits until all are connected to each other, gives the start.
    fn start(&mut self, generation: u64) -> Result<(), Refusal> {
        let zero = Member { name: self.meeting.name.clone(), listener: None };
        let others = self.seats.iter().flatten();
        let others = others.map(|seat| Member { name: seat.name.clone(), listener: seat.listener });
        let members = std::iter::once(zero).chain(others).collect();
        let roster = Message::Roster(Roster { generation, members });
        self.send_all(&roster, PAIRING + GRACE)?;
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
        self.send_all(&Message::Start, HANDSHAKE)
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

    fn send_all(&mut self, message: &Message, limit: Duration) -> Result<(), Refusal> {
        for (rank, seat) in self.seats.iter_mut().enumerate() {
            let Some(seat) = seat else { continue };
            seat.talk.allow(limit);
            seat.talk.send(message).map_err(|error| Refusal::Failed {
                rank: rank as u64,
                name: seat.name.clone(),
                reason: error.to_string(),
            })?;
        }
        Ok(())
    }

    fn into_met(self, generation: u64, keeper: Doorkeeper) -> Met {
        let (mut names, mut connections) = (vec![self.meeting.name.clone()], vec![None]);
        for seat in self.seats.into_iter().flatten() {
            names.push(seat.name);
            connections.push(Some(seat.talk.into_connection()));
        }
        Met { generation, names, connections, keeper: Some(keeper) }
    }
}

/// A rank beyond the world has nothing to mark.
fn mark(told: &mut [bool], rank: u64) {
    if let Some(told) = told.get_mut(rank as usize) {
        *told = true;
    }
}
