//! The way of a process into a group that trains: it finds a member, is compared with rank 0, gets
//! ready by itself (devices, data), connects to the doors of all members (`door.rs`), and waits until
//! the group admits it.
//!
//! Nothing depends on it before that: when it dies, is refused or is too slow, the group does not
//! notice. If the members change while it connects, they close its connections and it tries again.
//! Called by `mod.rs` and by `Group`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::acceptor::Acceptor;
use super::auth::{self, LocalParty, UNKNOWN};
use super::card::{MemberCard, MembersFile};
use super::door::{Door, Host, receive_request};
use super::handshake::{Enter, Handshake, HandshakeError, Hello, Message, Running, Welcome, unexpected};
use super::limits::AcceptLimits;
use super::refusal::Refusal;
use super::reject_log::RejectLog;
use super::{HANDSHAKE_TIMEOUT, JoinContext, POLL_INTERVAL, Reminder};
use crate::connection::{self, Connection};
use crate::error::{CommError, shown_line};
use crate::heartbeat_timing::HeartbeatTiming;
use crate::identity::Identity;
use crate::options::{Newcomers, Options};
use crate::secret::{Credentials, Secret, random};
use crate::socket;

/// Timeout for connecting to one address of a member.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to look for a group at the addresses of one: machines that are off do not answer.
const SEARCH_LIMIT: Duration = Duration::from_secs(5);
/// Pause before the next attempt to find a group, or to be admitted.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How long a process that a group refuses tries again: the group may belong to a run that is just
/// ending.
const REFUSED_LIMIT: Duration = Duration::from_secs(5);
/// How long a newcomer that is a member waits until the others say so, too. Shorter than the
/// shortest reasonable limit on silence.
const WELCOME_LIMIT: Duration = Duration::from_secs(3);

/// A group that trains, found by a process that may join it.
#[derive(Clone)]
pub struct RunningGroup {
    group: u64,
    members: Vec<MemberCard>,
    party: Party,
}

impl std::fmt::Debug for RunningGroup {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "RunningGroup({:016x}, {} ranks)", self.group, self.members.len())
    }
}

/// What a newcomer needs to talk to members.
#[derive(Clone)]
struct Party {
    name: String,
    timing: HeartbeatTiming,
    identity: Identity,
    credentials: Credentials,
    options: Options,
    ip: Option<IpAddr>,
}

/// A newcomer that is a member now.
pub(crate) struct Entered {
    pub(crate) welcome: Welcome,
    /// Indexed by rank.
    pub(crate) connections: Vec<Option<Connection>>,
    pub(crate) door: Option<Door>,
    pub(crate) credentials: Credentials,
    pub(crate) options: Options,
}

/// Looks for a group that trains: at the addresses that the user has given, which must lead to one,
/// else at those of the last group of this run directory.
pub(super) fn find(context: &JoinContext<'_>, newcomers: &Newcomers) -> Result<Option<RunningGroup>, CommError> {
    let mut reminder = Reminder::new(Instant::now());
    let limit = newcomers.limit.unwrap_or(context.options.join);
    loop {
        let file = MembersFile::read(&newcomers.members_file);
        let credentials = file.as_ref().and_then(MembersFile::credentials);
        let party = Party::new(context, credentials)?;
        let found = match (&newcomers.join[..], &file) {
            ([], None) => return Ok(None),
            ([], Some(file)) => {
                let addresses: Vec<_> = file.members.iter().map(|card| card.addresses.clone()).collect();
                party.find(&addresses, Some(file.group))
            }
            (given, _) => party.find(&given.iter().map(|address| resolved(address)).collect::<Vec<_>>(), None),
        };
        let error = match found {
            Ok(running) => return Ok(Some(running)),
            Err(error) => error,
        };
        let is_other = matches!(&error, HandshakeError::RefusedUs(Refusal::Mismatch(_)));
        if newcomers.join.is_empty() && !is_other {
            tracing::debug!("no group of this run trains now: {error}");
            return Ok(None);
        }
        let is_refused = matches!(&error, HandshakeError::RefusedUs(_) | HandshakeError::WeRefused(_));
        let is_final = is_refused && !is_early(&error) && context.started.elapsed() >= REFUSED_LIMIT;
        if is_final || context.started.elapsed() + RETRY_PAUSE >= limit {
            return Err(failed(error, &newcomers.join, limit));
        }
        if reminder.is_due(Instant::now()) {
            tracing::info!("waiting for the run at {}: {error}", newcomers.join.join(", "));
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}

/// Whether the group may admit processes later.
fn is_early(error: &HandshakeError) -> bool {
    matches!(error, HandshakeError::RefusedUs(Refusal::NotYet | Refusal::AlreadyStarted { .. }))
}

fn resolved(address: &str) -> Vec<SocketAddr> {
    address.to_socket_addrs().map_or_else(|_| Vec::new(), Iterator::collect)
}

fn failed(error: HandshakeError, at: &[String], waited: Duration) -> CommError {
    let at = if at.is_empty() { "this run's group".to_owned() } else { at.join(", ") };
    match error {
        HandshakeError::RefusedUs(_) | HandshakeError::WeRefused(_) => error.into_error(&at),
        error => CommError::Unreachable { what: "a run".to_owned(), address: at, waited, detail: error.to_string() },
    }
}

impl RunningGroup {
    /// The group of which a member has said that it trains. Fails if this process does not fit.
    pub(super) fn of(
        context: &JoinContext<'_>,
        running: &Running,
        credentials: &Credentials,
    ) -> Result<RunningGroup, HandshakeError> {
        let party = Party::new(context, Some(credentials.clone())).map_err(|error| io(error.to_string()))?;
        let addresses: Vec<_> = running.members.iter().map(|card| card.addresses.clone()).collect();
        party.find(&addresses, Some(running.group))
    }

    /// The machines of its members.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|card| card.host.as_str())
    }

    /// Waits until the group admits this process, or until `is_cancelled`. `run_dir` is the run
    /// directory of this machine.
    pub(crate) fn enter(mut self, run_dir: &Path, is_cancelled: &dyn Fn() -> bool) -> Result<Entered, CommError> {
        let id = u64::from_le_bytes(random().map_err(|reason| system("provide random numbers", reason))?).max(1);
        let (mut door, addresses) = match self.party.open_door() {
            Ok((door, addresses)) => (Some(door), addresses),
            Err(error) => {
                tracing::warn!("other processes cannot join the run through this rank: {error}");
                (None, Vec::new())
            }
        };
        let card = MemberCard { id, host: self.party.name.clone(), addresses };
        let (mut since, mut reminder) = (Instant::now(), Reminder::new(Instant::now()));
        loop {
            let error = match self.attempt(&card, run_dir, is_cancelled) {
                Ok(Some((welcome, connections))) => {
                    let Party { credentials, options, .. } = self.party;
                    return Ok(Entered { welcome, connections, door: door.take(), credentials, options });
                }
                // It was connected to a group that has changed meanwhile.
                Ok(None) => {
                    since = Instant::now();
                    io("the members changed".to_owned())
                }
                Err(error) => error,
            };
            let is_refused = matches!(&error, HandshakeError::RefusedUs(_) | HandshakeError::WeRefused(_));
            let limit = if is_refused { REFUSED_LIMIT } else { self.party.options.join };
            if since.elapsed() >= limit || is_cancelled() {
                let hosts: Vec<&str> = self.hosts().collect();
                return Err(CommError::GroupGone { hosts: hosts.join(", "), reason: error.to_string() });
            }
            if reminder.is_due(Instant::now()) {
                tracing::info!("waiting to be admitted to the run: {error}");
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    /// Connects to all members and waits until the first says that this process is one, too. `None`
    /// if the group has changed.
    #[expect(clippy::type_complexity, reason = "a welcome and the links that come with it")]
    fn attempt(
        &mut self,
        card: &MemberCard,
        run_dir: &Path,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<(Welcome, Vec<Option<Connection>>)>, HandshakeError> {
        let addresses: Vec<_> = self.members.iter().map(|card| card.addresses.clone()).collect();
        self.members = self.party.find(&addresses, Some(self.group))?.members;
        let Some(lead) = self.members.first().cloned() else { return Ok(None) };
        let (mut to_lead, running) = self.party.ask_to_enter(&lead, card)?;
        if running.rank != 0 || running.group != self.group {
            return Ok(None);
        }
        self.members.clone_from(&running.members);
        let mut connections = BTreeMap::new();
        for member in self.members.iter().skip(1) {
            connections.insert(member.id, self.party.ask_to_enter(member, card)?.0);
        }
        let sees = |(name, content): &(String, String)| {
            std::fs::read_to_string(run_dir.join("membership").join(name)).is_ok_and(|text| text == *content)
        };
        to_lead.send(&Message::Prepared { sees_directory: running.seen_file.as_ref().is_some_and(sees) })?;
        connections.insert(lead.id, to_lead);
        tracing::info!("connected to {} ranks; waiting for the end of their update", connections.len());
        let deadline = Instant::now() + self.party.options.progress;
        let mut welcomed = BTreeMap::new();
        let welcome = loop {
            if let Some(welcome) = receive_welcome(&mut connections, &mut welcomed) {
                break welcome;
            }
            if connections.is_empty() || is_cancelled() {
                return Ok(None);
            }
            if Instant::now() >= deadline {
                return Err(HandshakeError::TimedOut);
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        // From here on this process is a member. One that does not say so is lost.
        let deadline = Instant::now() + WELCOME_LIMIT;
        let others = || welcome.members.iter().filter(|member| member.id != card.id);
        while !others().all(|member| welcomed.contains_key(&member.id)) && Instant::now() < deadline {
            receive_welcome(&mut connections, &mut welcomed);
            std::thread::sleep(POLL_INTERVAL);
        }
        let link = |member: &MemberCard| match welcomed.remove(&member.id) {
            _ if member.id == card.id => Ok(None),
            Some(handshake) => Ok(Some(handshake.into_connection())),
            None => connection::lost().map(Some).map_err(|error| io(error.to_string())),
        };
        let links = welcome.members.iter().map(link).collect::<Result<Vec<_>, _>>()?;
        Ok(Some((welcome, links)))
    }
}

/// Takes what has arrived: the welcomes, and the ends of connections. Returns a welcome if one has.
fn receive_welcome(
    connections: &mut BTreeMap<u64, Handshake>,
    welcomed: &mut BTreeMap<u64, Handshake>,
) -> Option<Welcome> {
    let mut found = None;
    let readable: Vec<u64> =
        connections.iter().filter(|(_, handshake)| handshake.is_readable()).map(|(&id, _)| id).collect();
    for id in readable {
        let Some(mut handshake) = connections.remove(&id) else { continue };
        handshake.set_timeout(WELCOME_LIMIT);
        if let Ok(Message::Welcome(mut welcome)) = handshake.receive() {
            welcome.members = welcome.members.into_iter().map(MemberCard::checked).collect();
            welcomed.insert(id, handshake);
            found = Some(welcome);
        }
    }
    found
}

impl Party {
    /// `drawn` is the secret that rank 0 has drawn, if it is known.
    fn new(context: &JoinContext<'_>, drawn: Option<Credentials>) -> Result<Party, CommError> {
        let credentials = match &context.options.secret {
            Secret::Given(secret) => Credentials::given(secret)?,
            Secret::None | Secret::InDirectory(_) => drawn.unwrap_or(Credentials::None),
        };
        Ok(Party {
            name: context.name.clone(),
            timing: context.timing,
            identity: context.identity.clone(),
            credentials,
            options: context.options.clone(),
            ip: socket::chosen_ip(context.options)?,
        })
    }

    fn hello(&self) -> Hello {
        Hello {
            rank: None,
            world: 0,
            name: self.name.clone(),
            listener: None,
            timing: self.timing,
            identity: self.identity.clone(),
        }
    }

    fn local(&self) -> LocalParty<'_> {
        let encrypt = self.options.encrypt;
        LocalParty { rank: None, generation: UNKNOWN, credentials: &self.credentials, encrypt }
    }

    /// Finds the group `expected`, or any, through one of several processes, and knocks at its lead.
    fn find(&self, processes: &[Vec<SocketAddr>], expected: Option<u64>) -> Result<RunningGroup, HandshakeError> {
        let mut failure = io("no address is known".to_owned());
        let deadline = Instant::now() + SEARCH_LIMIT;
        for addresses in processes {
            // Through a member that is not the lead, the way is one longer; longer still if the lead
            // has just changed.
            let mut next = addresses.clone();
            for _ in 0..3 {
                match self.ask(&next, &Message::Knock(self.hello()), deadline) {
                    Ok((_, running)) if expected.is_some_and(|group| group != running.group) => {
                        failure = HandshakeError::WeRefused(Refusal::OtherGroup);
                        break;
                    }
                    Ok((_, Running { group, rank: 0, members, .. })) => {
                        return Ok(RunningGroup { group, members, party: self.clone() });
                    }
                    Ok((_, running)) => {
                        next = running.members.first().map_or_else(Vec::new, |lead| lead.addresses.clone())
                    }
                    Err(error @ HandshakeError::RefusedUs(Refusal::Mismatch(_))) => return Err(error),
                    Err(error) => {
                        failure = error;
                        break;
                    }
                }
            }
        }
        Err(failure)
    }

    fn ask_to_enter(&self, member: &MemberCard, card: &MemberCard) -> Result<(Handshake, Running), HandshakeError> {
        let enter = Enter { hello: self.hello(), card: card.clone() };
        self.ask(&member.addresses, &Message::Enter(Box::new(enter)), Instant::now() + SEARCH_LIMIT)
    }

    /// Sends a message to the first of these addresses that answers.
    fn ask(
        &self,
        addresses: &[SocketAddr],
        message: &Message,
        deadline: Instant,
    ) -> Result<(Handshake, Running), HandshakeError> {
        let mut failure = io("none of its addresses answers".to_owned());
        for &address in addresses.iter().take_while(|_| Instant::now() < deadline) {
            match self.ask_at(address, message) {
                Ok(answer) => return Ok(answer),
                Err(error @ (HandshakeError::RefusedUs(_) | HandshakeError::WeRefused(_))) => return Err(error),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn ask_at(&self, address: SocketAddr, message: &Message) -> Result<(Handshake, Running), HandshakeError> {
        let stream = socket::dial(address, self.ip, ADDRESS_TIMEOUT).map_err(HandshakeError::Io)?;
        let mut handshake = Handshake::new(stream, HANDSHAKE_TIMEOUT)?;
        // Doors answer as rank 0 does before there is a group.
        auth::dial(&mut handshake, &self.local(), 0)?;
        handshake.send(message)?;
        match handshake.receive()? {
            Message::Running(mut running) => {
                running.members = running.members.into_iter().map(MemberCard::checked).collect();
                Ok((handshake, running))
            }
            other => Err(unexpected("running", &other)),
        }
    }

    fn open_door(&self) -> Result<(Door, Vec<SocketAddr>), CommError> {
        open_door(&self.name, &self.identity, &self.options, &self.credentials, 0)
    }
}

/// Opens the door of a rank above 0, and returns its addresses.
pub(super) fn open_door(
    name: &str,
    identity: &Identity,
    options: &Options,
    credentials: &Credentials,
    world: usize,
) -> Result<(Door, Vec<SocketAddr>), CommError> {
    let ip = socket::chosen_ip(options)?;
    let listener = socket::listen_anywhere(ip, options)?;
    let port = listener.local_addr().map_err(|reason| system("read the port of a listener", reason))?.port();
    let addresses = socket::own_addresses(ip, port)?;
    let (credentials, encrypt) = (Arc::new(credentials.clone()), options.encrypt);
    let handler = move |handshake| {
        let party = LocalParty { rank: Some(0), generation: UNKNOWN, credentials: &credentials, encrypt };
        let (mut handshake, rank) = auth::answer(handshake, &party)?;
        let request = receive_request(&mut handshake, rank)?;
        Ok((handshake, request))
    };
    let acceptor = Acceptor::open(listener, AcceptLimits::AFTER_START, handler)?;
    let host = Host { name: name.to_owned(), identity: identity.clone() };
    let door = Door::open(acceptor, RejectLog::default(), world, host, super::door::TempFiles::Nothing)?;
    Ok((door, addresses))
}

fn io(reason: String) -> HandshakeError {
    HandshakeError::Io(std::io::Error::other(shown_line(&reason, 4096)))
}

fn system(what: &'static str, reason: std::io::Error) -> CommError {
    CommError::System { what, reason }
}
