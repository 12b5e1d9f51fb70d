//! `file:///shared/dir`: ranks that share a directory, and perhaps have no numbers, find each other by it.
//!
//! **Design.** The directory only tells where somebody leads a meeting; everything else goes over the network as with a
//! fixed address, authenticated, and rank 0 is the authority that hands out numbers. A process that leads listens on a
//! free port and puts up a notice (`notice.rs`): a drawn id, its addresses and, unless one was given to all, the secret.
//!
//! - A process with a number other than 0 goes to the first notice, in order of precedence, whose leader answers.
//! - The one that was told to be rank 0 leads, at once.
//! - One without a number goes to whoever answers; if nobody does, it leads itself.
//!
//! **No election is needed, and no lock.** A meeting is complete only when *all* ranks of the world sit in it, so two
//! meetings can never both begin, whatever the processes see of the directory and when. All that is left is that they
//! come together in the end: while it waits, a leader looks at the directory, and as soon as a leader that precedes it
//! answers, it stands down, sends its guests away to look again, and goes there itself. Precedence is a fixed order (told
//! to be rank 0 first, then the lowest id), so one leader remains: with everybody at its table.
//!
//! **Whether a leader is alive is told by the network, never by a file**: it must answer the authenticated handshake for
//! the id in its notice. A killed run leaves a notice at whose address nobody, another program, or a rank 0 with another
//! id answers; it is passed over, and removed by the next leader that succeeds. A leader whose notice was removed in
//! error (somebody could not reach it) puts it back. So nothing depends on clocks, leases or modification times, on locks
//! that NFS may not keep, or on how soon a client sees a new file: a late sight costs time, not correctness. A guest that
//! is killed leaves an empty seat, and a leader that is killed leaves guests that look again.
//!
//! One directory serves one run at a time: two would take each other's processes for their own.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use super::doorkeeper::Left;
use super::guest::{self, Setback};
use super::host::{self, Interruption, Venue};
use super::notice::{Notice, Posted, Precedence};
use super::seeker::{Found, Seeker};
use super::{Meeting, Met, Reminder};
use crate::error::CommError;
use crate::link::locked;
use crate::secret::{Credentials, Key, random};
use crate::secret_file::hex;
use crate::socket;

/// How often the directory is looked at: often at first, when all start together.
const LOOK: Duration = Duration::from_millis(200);
const LOOK_LATER: Duration = Duration::from_secs(1);
const EARLY: Duration = Duration::from_secs(10);

/// Meets the ranks that share `dir`.
pub(super) fn meet(meeting: &Meeting<'_>, dir: &Path) -> Result<Met, CommError> {
    let cannot = |error: std::io::Error| unusable(dir, &error.to_string());
    std::fs::create_dir_all(dir).map_err(cannot)?;
    let ip = socket::chosen_ip(meeting.options)?;
    let mut seeker = Seeker::new(meeting, dir, ip)?;
    let may_lead = meeting.rank.is_none_or(|rank| rank == 0);
    let mut reminder = Reminder::new(Instant::now());
    let mut found = None;
    loop {
        if found.is_none() && meeting.rank != Some(0) {
            found = seeker.find(None)?;
        }
        match found.take() {
            Some(Found { notice, home, credentials }) => match guest::stay(meeting, home, &credentials, ip) {
                Ok(met) => return Ok(met),
                Err(Setback::Final(error)) => return Err(error),
                Err(Setback::Early(error)) => seeker.came_back(&notice, error)?,
            },
            None if may_lead => match lead(meeting, &seeker, ip)? {
                Led::Met(met) => return Ok(met),
                Led::StoodDown(other) => {
                    found = other;
                    continue;
                }
            },
            None => {}
        }
        if meeting.left().is_zero() {
            let (at, waited) = (meeting.at.clone(), meeting.options.join);
            return Err(CommError::NoMeeting { at, waited, detail: seeker.detail() });
        }
        if reminder.is_due(Instant::now()) {
            tracing::info!("waiting for rank 0 at {}: {}", meeting.at, seeker.detail());
        }
        std::thread::sleep(LOOK.min(meeting.left()));
    }
}

fn unusable(dir: &Path, reason: &str) -> CommError {
    CommError::Directory { path: dir.display().to_string(), reason: reason.to_owned() }
}

enum Led {
    Met(Met),
    /// For this one.
    StoodDown(Option<Found>),
}

/// Leads a meeting until all have come or another leader precedes this one.
fn lead(meeting: &Meeting<'_>, seeker: &Seeker, ip: Option<IpAddr>) -> Result<Led, CommError> {
    let system = |what| move |source| CommError::System { what, reason: source };
    let listener = socket::listen_anywhere(ip, meeting.options)?;
    let port = listener.local_addr().map_err(system("tell a port"))?.port();
    let addresses = socket::own_addresses(ip, port)?;
    let drawn = system("give random numbers");
    let id = u64::from_le_bytes(random().map_err(drawn)?).max(1);
    let (credentials, secret) = match &seeker.given {
        Some(given) => (given.clone(), None),
        None => {
            let secret = hex(&random::<32>().map_err(system("give random numbers"))?);
            (Credentials::File(Ok(Key::new(&secret))), Some(secret))
        }
    };
    let is_rank_0 = meeting.rank == Some(0);
    let notice = Notice { id, is_rank_0, host: meeting.name.clone(), addresses, secret };
    // After the port is open, so that whoever sees the notice finds somebody there.
    let posted = Posted::post(&seeker.dir, &notice).map_err(|reason| unusable(&seeker.dir, &reason))?;
    let posted = Arc::new(posted);
    let watch = Watch::start(seeker.clone(), &notice, &posted)?;
    let venue = Venue { listener, generation: id, credentials, left: Left::Notice(posted) };
    let hosted = host::host(meeting, venue, &mut || watch.interruption());
    match hosted {
        Ok(Some(met)) => {
            watch.0.has_met.store(true, Ordering::Release);
            Ok(Led::Met(met))
        }
        Ok(None) => Ok(Led::StoodDown(watch.0.seen().found.take())),
        Err(CommError::Missing { ranks, world, rendezvous, waited, mut notes }) => {
            notes.append(&mut watch.0.seen().troubles);
            Err(CommError::Missing { ranks, world, rendezvous, waited, notes })
        }
        Err(error) => Err(error),
    }
}

/// A leader's eye on the directory, in a thread of its own: looking may take seconds, and guests must not wait for it.
struct Watch(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// The meeting is over, one way or the other.
    is_over: AtomicBool,
    has_met: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    found: Option<Found>,
    failure: Option<CommError>,
    troubles: Vec<String>,
}

impl Watch {
    fn start(mut seeker: Seeker, own: &Notice, posted: &Arc<Posted>) -> Result<Watch, CommError> {
        let shared = Arc::<Shared>::default();
        seeker.pass_over(own.id);
        let (state, own, posted) = (shared.clone(), own.precedence(), Arc::downgrade(posted));
        let run = move || watch(seeker, own, &posted, &state);
        let thread = std::thread::Builder::new().name("hetseq-watch".to_owned()).spawn(run);
        thread.map_err(|source| CommError::System { what: "start a thread", reason: source })?;
        Ok(Watch(shared))
    }

    fn interruption(&self) -> Option<Interruption> {
        let mut seen = self.0.seen();
        match (seen.failure.take(), &seen.found) {
            (Some(failure), _) => Some(Interruption::Fail(failure)),
            (None, Some(_)) => Some(Interruption::StandDown),
            (None, None) => None,
        }
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        locked(&self.seen)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

fn watch(mut seeker: Seeker, own: Precedence, posted: &Weak<Posted>, shared: &Shared) {
    let start = Instant::now();
    while !shared.is_over.load(Ordering::Acquire) {
        let Some(notice) = posted.upgrade() else { return };
        notice.renew();
        drop(notice);
        let (found, failure) = match seeker.find(Some(own)) {
            Ok(Some(found)) if seeker.is_told_to_lead() => (None, seeker.twin(found)),
            Ok(found) => (found, None),
            Err(failure) => (None, Some(failure)),
        };
        let mut seen = shared.seen();
        *seen = Seen { found, failure, troubles: seeker.troubles() };
        if seen.found.is_some() || seen.failure.is_some() {
            return;
        }
        drop(seen);
        std::thread::sleep(if start.elapsed() < EARLY { LOOK } else { LOOK_LATER });
    }
    if shared.has_met.load(Ordering::Acquire) {
        seeker.clean_up();
    }
}
