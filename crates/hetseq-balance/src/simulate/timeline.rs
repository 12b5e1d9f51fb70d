//! Simulates the updates of one span, event by event. Called by `simulate`.
//!
//! A rank computes, and then its link carries its contribution, for half of its exchange time. Sums
//! flow back from the moment at which the last rank begins to contribute, and take the other half.
//! A rank has its results when that half is over and the last contribution of all ranks has
//! arrived. Then its host works, and its next update begins, independently of the others. In the
//! long run an update then takes as long as the planner predicts, the longest cycle of any rank,
//! also if links differ. The first update may take longer.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use hetseq_random::Key;

use super::membership::{MemberSpan, group_of};
use super::{AHEAD, Disturbance, Replan, Setup, SimulateError, Simulation};
use crate::planner::{AssignedWork, Planner, WorkTime};
use crate::profile::Profile;

/// More than a century: the profile must be wrong.
const ENDLESS_S: f64 = 4e9;

/// Seconds since the start; never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Timestamp(f64);

impl Eq for Timestamp {}

impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timestamp {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Ordered by time. Events at the same time need some fixed order; it does not matter which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Timestamp,
    kind: EventKind,
    /// Index in the span's members.
    member: usize,
    update: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    /// Its devices are done.
    Computed,
    /// It has the sums.
    Received,
    /// Its host is done; the next update can begin.
    Ready,
}

/// A rank of the span.
struct Member {
    rank: usize,
    /// Its devices in the span's planner.
    devices: std::ops::Range<usize>,
    /// The link's time for one direction of the exchange.
    half_net_s: f64,
    host_s: f64,
    computed_at: f64,
}

/// An update that is planned and not yet done by all ranks.
struct PlannedUpdate {
    work: Vec<AssignedWork>,
    times: Vec<WorkTime>,
    computed: usize,
    last_computed_at: f64,
    last_contributed_at: f64,
    ready: usize,
}

pub(super) struct Timeline<'a> {
    setup: &'a Setup,
    span: &'a MemberSpan,
    totals: &'a mut Simulation,
    planner: Planner,
    members: Vec<Member>,
    /// For each device of the span's planner, its index in the whole group.
    devices: Vec<usize>,
    after_s: Vec<f64>,
    /// The first of them is update `oldest`.
    planned: VecDeque<PlannedUpdate>,
    oldest: u64,
    events: BinaryHeap<Reverse<Event>>,
}

impl<'a> Timeline<'a> {
    pub(super) fn new(
        profile: &Profile,
        setup: &'a Setup,
        span: &'a MemberSpan,
        totals: &'a mut Simulation,
    ) -> Result<Self, SimulateError> {
        let mut first_device = 0;
        let mut first_devices = Vec::with_capacity(profile.ranks.len());
        for rank in &profile.ranks {
            first_devices.push(first_device);
            first_device += rank.devices.len();
        }
        let group = group_of(profile, &span.members);
        let (mut members, mut devices, mut after_s) = (Vec::new(), Vec::new(), Vec::new());
        for (&rank, of_rank) in span.members.iter().zip(&group.ranks) {
            let first = devices.len();
            devices.extend((0..of_rank.devices.len()).map(|device| first_devices[rank] + device));
            after_s.extend(of_rank.devices.iter().map(|device| device.after_s));
            let devices = first..devices.len();
            members.push(Member { rank, devices, half_net_s: 0.0, host_s: of_rank.host_s, computed_at: 0.0 });
        }
        let (planner, oldest) = (Planner::new(&group), span.updates.start);
        let (planned, events) = (VecDeque::new(), BinaryHeap::new());
        let mut timeline =
            Timeline { setup, span, totals, planner, members, devices, after_s, planned, oldest, events };
        for update in span.updates.clone().take(AHEAD as usize) {
            timeline.plan(update)?;
        }
        Ok(timeline)
    }

    /// Runs until all ranks are ready with the last update, and adds everything to `totals`.
    pub(super) fn run(mut self) -> Result<(), SimulateError> {
        let began_s = self.totals.seconds;
        for member in 0..self.members.len() {
            self.begin(member, self.span.updates.start, began_s);
        }
        while let Some(Reverse(Event { at: Timestamp(at), kind, member, update })) = self.events.pop() {
            match kind {
                EventKind::Computed => self.computed(member, update, at),
                EventKind::Received => {
                    let host_s = self.members[member].host_s;
                    self.push(at + host_s, EventKind::Ready, member, update);
                }
                EventKind::Ready => self.ready(member, update, at)?,
            }
        }
        Ok(())
    }

    fn push(&mut self, at: f64, kind: EventKind, member: usize, update: u64) {
        self.events.push(Reverse(Event { at: Timestamp(at), kind, member, update }));
    }

    /// Plans an update and computes the time that each device will take.
    fn plan(&mut self, update: u64) -> Result<(), SimulateError> {
        let plan = self.planner.share(self.setup.split, &self.setup.tokens)?;
        let predicted_s = plan.prediction.update_s;
        if !(0.0..ENDLESS_S).contains(&predicted_s) {
            return Err(SimulateError::Endless { seconds: predicted_s });
        }
        if update == self.span.updates.start {
            // From the links alone; later estimates of the planner do not change the links.
            for (member, rank) in self.members.iter_mut().zip(&plan.prediction.ranks) {
                member.half_net_s = 0.5 * rank.net_s;
            }
        }
        self.totals.predicted_s.push(predicted_s);
        if let Some(replanned) = plan.replanned {
            let (gain, before_s, after_s) = (replanned.gain, replanned.before_s, replanned.after_s);
            self.totals.replans.push(Replan { update, gain, before_s, after_s });
        }
        let slowdowns = self.slowdowns(update);
        let key = Key::root(self.setup.seed).name("jitter").index(update);
        let time = |(device, work): (usize, &AssignedWork)| {
            let group_device = self.devices[device];
            let jitter = key.index(group_device as u64).unit(0) * 2.0 - 1.0;
            let factor = slowdowns[device] * (1.0 + self.setup.jitter * f64::from(jitter));
            let after_s = if work.samples > 0 { self.after_s[device] } else { 0.0 };
            WorkTime { base_s: work.base_s, micros: micros(work.base_s * factor), after_micros: micros(after_s) }
        };
        let times = plan.work.iter().enumerate().map(time).collect();
        let (last_computed_at, last_contributed_at) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
        let work = plan.work;
        self.planned.push_back(PlannedUpdate {
            work,
            times,
            computed: 0,
            last_computed_at,
            last_contributed_at,
            ready: 0,
        });
        Ok(())
    }

    /// Each device's slowdown by disturbances.
    fn slowdowns(&self, update: u64) -> Vec<f64> {
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
        let planned = &self.planned[(update - self.oldest) as usize];
        let Member { rank, devices, .. } = &self.members[member];
        let mut slowest_s = 0.0f64;
        for device in devices.clone() {
            let time = planned.times[device];
            let compute_s = time.micros.saturating_add(time.after_micros) as f64 * 1e-6;
            slowest_s = slowest_s.max(compute_s);
            let totals = &mut self.totals.devices[self.devices[device]];
            totals.samples += planned.work[device].samples;
            totals.compute_s += compute_s;
            self.totals.ranks[*rank].samples += planned.work[device].samples;
        }
        self.totals.ranks[*rank].compute_s += slowest_s;
        self.push(at + slowest_s, EventKind::Computed, member, update);
    }

    fn computed(&mut self, member: usize, update: u64, at: f64) {
        self.members[member].computed_at = at;
        let planned = &mut self.planned[(update - self.oldest) as usize];
        planned.computed += 1;
        planned.last_computed_at = at;
        planned.last_contributed_at = planned.last_contributed_at.max(at + self.members[member].half_net_s);
        if planned.computed < self.members.len() {
            return;
        }
        let (flows_from, complete_at) = (planned.last_computed_at, planned.last_contributed_at);
        for member in 0..self.members.len() {
            let &Member { rank, half_net_s, host_s, computed_at, .. } = &self.members[member];
            let contributed_at = computed_at + half_net_s;
            let received_at = (contributed_at.max(flows_from) + half_net_s).max(complete_at);
            let totals = &mut self.totals.ranks[rank];
            totals.net_s += 2.0 * half_net_s;
            totals.wait_s += (received_at - computed_at - 2.0 * half_net_s).max(0.0);
            totals.host_s += host_s;
            self.push(received_at, EventKind::Received, member, update);
        }
    }

    fn ready(&mut self, member: usize, update: u64, at: f64) -> Result<(), SimulateError> {
        let planned = &mut self.planned[(update - self.oldest) as usize];
        planned.ready += 1;
        if planned.ready == self.members.len() {
            self.totals.update_s.push(at - self.totals.seconds);
            self.totals.seconds = at;
            self.learn(update)?;
        }
        if update + 1 < self.span.updates.end {
            self.begin(member, update + 1, at);
        }
        Ok(())
    }

    /// Passes the times of an update to the planner when all ranks are ready, and plans a later
    /// update.
    fn learn(&mut self, update: u64) -> Result<(), SimulateError> {
        if let Some(planned) = self.planned.pop_front() {
            self.oldest = update + 1;
            self.planner.observe(&planned.times);
            let hosts: Vec<u64> = self.members.iter().map(|member| micros(member.host_s)).collect();
            self.planner.observe_hosts(&hosts);
        }
        if update + AHEAD < self.span.updates.end { self.plan(update + AHEAD) } else { Ok(()) }
    }
}

/// Rounded to the resolution of the trainer's clock.
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}
