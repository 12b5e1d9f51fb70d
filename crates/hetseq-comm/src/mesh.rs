//! All links of one rank, and the one place where it waits for them.
//!
//! `reduce.rs` writes the collectives over this; which engine carries the frames is not visible here.
//! The rank's own thread does everything: while it waits for a frame it keeps filling the outgoing
//! lanes and looks at the health of *every* link, so a dead peer is reported although another one is
//! awaited.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{CommError, Moment};
use crate::frame::{Frame, FrameError, Kind};
use crate::lane::{Bell, End, Next};
use crate::link::Link;
use crate::options::Options;
use crate::outgoing::{Outgoing, Step};

/// How long the last words of a rank that failed may take when peers do not answer.
const LAST_WORDS: Duration = Duration::from_secs(2);

pub(crate) struct Mesh {
    pub(crate) rank: usize,
    pub(crate) generation: u64,
    /// One name per rank, this one included.
    pub(crate) hosts: Vec<String>,
    pub(crate) context: String,
    /// One per rank; `None` at this rank's own place.
    links: Vec<Option<Link>>,
    bell: Arc<Bell>,
    progress: Duration,
    /// Collectives begun so far; equal on all ranks as long as they are in step.
    sequence: u64,
    failure: Option<String>,
}

impl Mesh {
    pub(crate) fn new(
        rank: usize,
        generation: u64,
        hosts: Vec<String>,
        links: Vec<Option<Link>>,
        bell: Arc<Bell>,
        options: &Options,
    ) -> Mesh {
        debug_assert_eq!(hosts.len(), links.len());
        Mesh {
            rank,
            generation,
            hosts,
            context: String::new(),
            links,
            bell,
            progress: options.progress,
            sequence: 0,
            failure: None,
        }
    }

    pub(crate) fn world(&self) -> usize {
        self.hosts.len()
    }

    /// All ranks but this one, in rank order.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.world()).filter(move |peer| *peer != rank)
    }

    /// Runs one collective. Its first failure makes the mesh unusable: frames of a half-done
    /// collective are still under way.
    pub(crate) fn run<T>(
        &mut self,
        kind: Kind,
        body: impl FnOnce(&mut Mesh, Step) -> Result<T, CommError>,
    ) -> Result<T, CommError> {
        if let Some(first) = &self.failure {
            return Err(CommError::AlreadyFailed { first: first.clone() });
        }
        self.sequence += 1;
        let step = Step { kind, sequence: self.sequence };
        let result = body(self, step);
        if let Err(error) = &result {
            self.failure = Some(error.to_string());
        }
        result
    }

    /// The next frame of this step from any peer that `wanted` names. Sends meanwhile.
    pub(crate) fn receive(
        &mut self,
        step: Step,
        wanted: impl Fn(usize) -> bool,
        outgoing: &mut Outgoing<'_>,
    ) -> Result<(usize, Frame), CommError> {
        let mut progress = Instant::now();
        loop {
            let seen = self.bell.rings();
            if outgoing.pump(step, &self.links) {
                progress = Instant::now();
            }
            for (peer, link) in self.links() {
                if !wanted(peer) {
                    continue;
                }
                match link.incoming.next() {
                    Next::Frame(frame) => return Ok((peer, self.in_step(step, peer, frame)?)),
                    Next::Ended(end) => return Err(self.ended(step, peer, end)),
                    Next::Nothing => {}
                }
            }
            self.check_health(step)?;
            let left = self.progress.saturating_sub(progress.elapsed());
            if left.is_zero() {
                let awaited = self.links().map(|(peer, _)| peer).find(|peer| wanted(*peer));
                return Err(self.no_progress(step, awaited.unwrap_or(self.rank)));
            }
            self.bell.wait(seen, left);
        }
    }

    /// Gives a frame's memory back after use.
    pub(crate) fn recycle(&self, peer: usize, frame: Frame) {
        if let Some(Some(link)) = self.links.get(peer) {
            link.incoming.buffers.give(frame.payload);
        }
    }

    /// Hands the rest of what is to be sent to the lanes; returns before it has all arrived.
    pub(crate) fn finish(&mut self, step: Step, outgoing: &mut Outgoing<'_>) -> Result<(), CommError> {
        let mut progress = Instant::now();
        loop {
            let seen = self.bell.rings();
            if outgoing.pump(step, &self.links) {
                progress = Instant::now();
            }
            let Some(peer) = outgoing.next_peer() else { return Ok(()) };
            // Even one that said goodbye has failed if it leaves before it has taken its part.
            if let Some(Some(end)) = self.links[peer].as_ref().map(|link| link.incoming.ended()) {
                return Err(self.ended(step, peer, end));
            }
            self.check_health(step)?;
            let left = self.progress.saturating_sub(progress.elapsed());
            if left.is_zero() {
                return Err(self.no_progress(step, peer));
            }
            self.bell.wait(seen, left);
        }
    }

    /// Says farewell to all peers and waits until they have heard it.
    pub(crate) fn part(&mut self, end: End) {
        // Before a goodbye, data is still on its way that peers need; over a slow line that takes a
        // while. A dead peer ends the wait by its silence.
        let patience = if end == End::Goodbye { self.progress } else { LAST_WORDS };
        for (_, link) in self.links() {
            link.outgoing.end(end.clone());
            link.incoming.stop_listening();
        }
        let start = Instant::now();
        loop {
            let seen = self.bell.rings();
            // The peer's threads answer a farewell by closing, also while the peer computes.
            let answered = |link: &Link| link.wire.is_none() || link.incoming.ended().is_some();
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() || self.links().all(|(_, link)| answered(link)) {
                break;
            }
            self.bell.wait(seen, left);
        }
        self.links.clear();
    }

    fn links(&self) -> impl Iterator<Item = (usize, &Link)> {
        self.links.iter().enumerate().filter_map(|(peer, link)| Some((peer, link.as_ref()?)))
    }

    /// A peer that failed is reported even when nothing is awaited from it. One that said goodbye has
    /// done its part, and may already be gone while others finish.
    fn check_health(&self, step: Step) -> Result<(), CommError> {
        for (peer, link) in self.links() {
            match link.incoming.ended() {
                None | Some(End::Goodbye) => {}
                Some(end) => return Err(self.ended(step, peer, end)),
            }
        }
        Ok(())
    }

    fn in_step(&self, step: Step, peer: usize, frame: Frame) -> Result<Frame, CommError> {
        if (frame.kind, frame.sequence) == (step.kind, step.sequence) {
            return Ok(frame);
        }
        let named = |kind: Kind, sequence: u64| format!("{} (operation {sequence})", kind.name());
        Err(CommError::OutOfStep {
            rank: peer,
            host: self.hosts[peer].clone(),
            theirs: named(frame.kind, frame.sequence),
            ours: named(step.kind, step.sequence),
            moment: self.moment(step),
        })
    }

    fn ended(&self, step: Step, rank: usize, end: End) -> CommError {
        let (host, moment) = (self.hosts[rank].clone(), self.moment(step));
        match end {
            End::Goodbye => {
                let detail = "it had finished and said goodbye".to_owned();
                CommError::Left { rank, host, detail, moment }
            }
            End::Aborted(reason) => CommError::Stopped { rank, host, reason, moment },
            End::Closed(detail) => CommError::Left { rank, host, detail, moment },
            End::Silent(silence) => CommError::Silent { rank, host, silence, moment },
            End::Garbled(fault) => CommError::Garbled { rank, host, fault, moment },
        }
    }

    fn no_progress(&self, step: Step, rank: usize) -> CommError {
        let (host, moment) = (self.hosts[rank].clone(), self.moment(step));
        CommError::NoProgress { rank, host, limit: self.progress, moment }
    }

    /// A frame whose size shows that the peer's vector or shards are not ours.
    pub(crate) fn part_size(&self, step: Step, rank: usize, sent: String, due: String) -> CommError {
        let (host, moment) = (self.hosts[rank].clone(), self.moment(step));
        CommError::PartSize { rank, host, sent, due, moment }
    }

    /// A frame that is well-formed but not acceptable in this step.
    pub(crate) fn garbled(&self, step: Step, rank: usize, fault: FrameError) -> CommError {
        self.ended(step, rank, End::Garbled(fault))
    }

    fn moment(&self, step: Step) -> Box<Moment> {
        Box::new(Moment { phase: step.kind.name(), context: self.context.clone() })
    }
}

/// A rank that ends because of a failure or a panic tells the others, so that their logs name the
/// first cause and not the chain that followed.
impl Drop for Mesh {
    fn drop(&mut self) {
        if let Some(reason) = self.failure.take() {
            self.part(End::Aborted(reason));
        } else if std::thread::panicking() {
            self.part(End::Aborted("it panicked; see its log".to_owned()));
        }
    }
}
