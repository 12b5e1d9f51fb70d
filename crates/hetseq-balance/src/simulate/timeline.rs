//! The updates of one span, event by event.
//!
//! A rank computes, and as soon as it is done its line carries what it contributes: half of its time for the exchange.
//! Sums flow back from the moment when the last rank has begun to contribute, and take the other half. A rank has its
//! results when that half is over and the last contribution of all has arrived; then its host works, and its next update
//! begins, whatever the others do. In the long run an update then takes what the planner predicts, the longest of the
//! ranks' own cycles, also if lines differ; the first one may take longer.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use hetseq_random::Key;

use super::membership::{Span, group_of};
use super::{AHEAD, Disturbance, Replan, Setup, SimulateError, Simulation};
use crate::planner::{Done, Planner, Work};
use crate::profile::Profile;

/// More than a century: something is wrong with the profile.
const ENDLESS_S: f64 = 4e9;

/// Seconds since the beginning; never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moment(f64);

impl Eq for Moment {}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Ordered by time; of what happens at once the order does not matter, but must be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Moment,
    what: What,
    /// Of the span.
    member: usize,
    update: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// Its devices are done.
    Computed,
    /// It has the sums.
    Received,
    /// Its host is done: the next update may begin.
    Ready,
}

/// A rank of the span.
struct Member {
    rank: usize,
    /// Its devices in the span's planner.
    devices: std::ops::Range<usize>,
    /// What the line takes for one direction of the exchange.
    half_net_s: f64,
    host_s: f64,
    computed_at: f64,
}

/// An update that was shared and is not done by all.
struct Shared {
    work: Vec<Work>,
    done: Vec<Done>,
    computed: usize,
    last_computed_at: f64,
    last_contributed_at: f64,
    ready: usize,
}

pub(super) struct Timeline<'a> {
    setup: &'a Setup,
    span: &'a Span,
    sums: &'a mut Simulation,
    planner: Planner,
    members: Vec<Member>,
    /// Of the group, by the device in the span's planner.
    devices: Vec<usize>,
    after_s: Vec<f64>,
    /// The first of them is update `oldest`.
    shared: VecDeque<Shared>,
    oldest: u64,
    events: BinaryHeap<Reverse<Event>>,
}

impl<'a> Timeline<'a> {
    pub(super) fn new(
        profile: &Profile,
        setup: &'a Setup,
        span: &'a Span,
        sums: &'a mut Simulation,
    ) -> Result<Self, SimulateError> {
        let mut first_device = 0;
        let mut first_devices = Vec::with_capacity(profile.ranks.len());
        for rank in &profile.ranks {
            first_devices.push(first_device);
            first_device += rank.devices.len();
        }
        let there = group_of(profile, &span.members);
        let (mut members, mut devices, mut after_s) = (Vec::new(), Vec::new(), Vec::new());
        for (&rank, of_rank) in span.members.iter().zip(&there.ranks) {
            let first = devices.len();
            devices.extend((0..of_rank.devices.len()).map(|device| first_devices[rank] + device));
            after_s.extend(of_rank.devices.iter().map(|device| device.after_s));
            let devices = first..devices.len();
            members.push(Member { rank, devices, half_net_s: 0.0, host_s: of_rank.host_s, computed_at: 0.0 });
        }
        let (planner, oldest) = (Planner::new(&there), span.updates.start);
        let (shared, events) = (VecDeque::new(), BinaryHeap::new());
        let mut timeline = Timeline { setup, span, sums, planner, members, devices, after_s, shared, oldest, events };
        for update in span.updates.clone().take(AHEAD as usize) {
            timeline.share(update)?;
        }
        Ok(timeline)
    }

    /// Until all are ready with the last update; then `sums` tells of it.
    pub(super) fn play(mut self) -> Result<(), SimulateError> {
        let began_s = self.sums.seconds;
        for member in 0..self.members.len() {
            self.begin(member, self.span.updates.start, began_s);
        }
        while let Some(Reverse(Event { at: Moment(at), what, member, update })) = self.events.pop() {
            match what {
                What::Computed => self.computed(member, update, at),
                What::Received => {
                    let host_s = self.members[member].host_s;
                    self.push(at + host_s, What::Ready, member, update);
                }
                What::Ready => self.ready(member, update, at)?,
            }
        }
        Ok(())
    }

    fn push(&mut self, at: f64, what: What, member: usize, update: u64) {
        self.events.push(Reverse(Event { at: Moment(at), what, member, update }));
    }

    /// Decides who does what of an update, and foresees how long each device will take.
    fn share(&mut self, update: u64) -> Result<(), SimulateError> {
        let plan = self.planner.share(self.setup.split, &self.setup.tokens)?;
        let predicted_s = plan.prediction.update_s;
        if !(0.0..ENDLESS_S).contains(&predicted_s) {
            return Err(SimulateError::Endless { seconds: predicted_s });
        }
        if update == self.span.updates.start {
            // By the lines alone; what the planner may come to think of them later changes nothing.
            for (member, rank) in self.members.iter_mut().zip(&plan.prediction.ranks) {
                member.half_net_s = 0.5 * rank.net_s;
            }
        }
        self.sums.predicted_s.push(predicted_s);
        if let Some(replanned) = plan.replanned {
            let (gain, before_s, after_s) = (replanned.gain, replanned.before_s, replanned.after_s);
            self.sums.replans.push(Replan { update, gain, before_s, after_s });
        }
        let disturbed = self.disturbances(update);
        let key = Key::root(self.setup.seed).name("jitter").index(update);
        let done = |(device, work): (usize, &Work)| {
            let group_device = self.devices[device];
            let jitter = key.index(group_device as u64).unit(0) * 2.0 - 1.0;
            let factor = disturbed[device] * (1.0 + self.setup.jitter * f64::from(jitter));
            let after_s = if work.samples > 0 { self.after_s[device] } else { 0.0 };
            Done { base_s: work.base_s, micros: micros(work.base_s * factor), after_micros: micros(after_s) }
        };
        let done = plan.work.iter().enumerate().map(done).collect();
        let (last_computed_at, last_contributed_at) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
        let work = plan.work;
        self.shared.push_back(Shared { work, done, computed: 0, last_computed_at, last_contributed_at, ready: 0 });
        Ok(())
    }

    /// How many times as long each device takes because of others who use it.
    fn disturbances(&self, update: u64) -> Vec<f64> {
        let mut factors = vec![1.0; self.devices.len()];
        for &Disturbance { rank, device, from_update, to_update, factor } in &self.setup.disturbances {
            if !(from_update..=to_update).contains(&update) {
                continue;
            }
            let member = self.members.binary_search_by_key(&rank, |member| member.rank);
            for (number, at) in member.into_iter().flat_map(|member| self.members[member].devices.clone().enumerate()) {
                if device.is_none_or(|device| device == number) {
                    factors[at] *= factor;
                }
            }
        }
        factors
    }

    fn begin(&mut self, member: usize, update: u64, at: f64) {
        let shared = &self.shared[(update - self.oldest) as usize];
        let Member { rank, devices, .. } = &self.members[member];
        let mut slowest_s = 0.0f64;
        for device in devices.clone() {
            let done = shared.done[device];
            let compute_s = done.micros.saturating_add(done.after_micros) as f64 * 1e-6;
            slowest_s = slowest_s.max(compute_s);
            let sums = &mut self.sums.devices[self.devices[device]];
            sums.samples += shared.work[device].samples;
            sums.compute_s += compute_s;
            self.sums.ranks[*rank].samples += shared.work[device].samples;
        }
        self.sums.ranks[*rank].compute_s += slowest_s;
        self.push(at + slowest_s, What::Computed, member, update);
    }

    fn computed(&mut self, member: usize, update: u64, at: f64) {
        self.members[member].computed_at = at;
        let shared = &mut self.shared[(update - self.oldest) as usize];
        shared.computed += 1;
        shared.last_computed_at = at;
        shared.last_contributed_at = shared.last_contributed_at.max(at + self.members[member].half_net_s);
        if shared.computed < self.members.len() {
            return;
        }
        let (flows_from, complete_at) = (shared.last_computed_at, shared.last_contributed_at);
        for member in 0..self.members.len() {
            let &Member { rank, half_net_s, host_s, computed_at, .. } = &self.members[member];
            let contributed_at = computed_at + half_net_s;
            let received_at = (contributed_at.max(flows_from) + half_net_s).max(complete_at);
            let sums = &mut self.sums.ranks[rank];
            sums.net_s += 2.0 * half_net_s;
            sums.wait_s += (received_at - computed_at - 2.0 * half_net_s).max(0.0);
            sums.host_s += host_s;
            self.push(received_at, What::Received, member, update);
        }
    }

    fn ready(&mut self, member: usize, update: u64, at: f64) -> Result<(), SimulateError> {
        let shared = &mut self.shared[(update - self.oldest) as usize];
        shared.ready += 1;
        if shared.ready == self.members.len() {
            self.sums.update_s.push(at - self.sums.seconds);
            self.sums.seconds = at;
            self.learn(update)?;
        }
        if update + 1 < self.span.updates.end {
            self.begin(member, update + 1, at);
        }
        Ok(())
    }

    /// All are ready: what was measured decides about a later update.
    fn learn(&mut self, update: u64) -> Result<(), SimulateError> {
        if let Some(shared) = self.shared.pop_front() {
            self.oldest = update + 1;
            self.planner.observe(&shared.done);
            let hosts: Vec<u64> = self.members.iter().map(|member| micros(member.host_s)).collect();
            self.planner.observe_hosts(&hosts);
        }
        if update + AHEAD < self.span.updates.end { self.share(update + AHEAD) } else { Ok(()) }
    }
}

/// As a trainer's clock would tell.
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}
