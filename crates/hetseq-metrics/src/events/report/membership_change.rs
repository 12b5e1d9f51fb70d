//! Ranks that a run has lost, or that have left, and what that cost: the changes of membership of one process group. Pure;
//! called by `process_group.rs`.
//!
//! `lost` events have the numbers of ranks at the start, `workers` events those of the current group:
//! ranks that are left keep their order and are numbered from zero again. Totals of one process are
//! added up over both, so [`MembershipChanges`] also translates the second into the first.

use serde::Serialize;

use crate::ShareChange;

/// Ranks were lost or left at once, and the others continued or stopped.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MembershipChange {
    /// Updates done before.
    pub update: u64,
    pub lost: Vec<LostRecord>,
    pub left: Vec<LeftRecord>,
    /// The rank that writes checkpoints and events since then, if rank 0 is not there any more.
    pub new_lead: Option<LeadRecord>,
    /// `None` if the run ended, or was killed, before the others continued.
    pub continued: Option<Continuation>,
}

/// A lost rank, by its number at the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostRecord {
    pub rank: usize,
    pub host: String,
    pub reason: String,
}

/// A rank that left by itself, by its number at the start.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeftRecord {
    pub rank: usize,
    pub host: String,
    pub reason: String,
    /// Of all ranks before.
    pub shares: Vec<ShareChange>,
}

/// The rank that took over from rank 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeadRecord {
    /// Its number at the start, if the events tell it.
    pub rank: Option<usize>,
    pub host: String,
}

/// How the other ranks continued, and what that cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Continuation {
    /// Ranks and devices that are left.
    pub world: usize,
    pub devices: usize,
    /// From the end of the last update until the loss was noticed.
    pub interrupted_s: f64,
    /// From noticing the loss until training continued.
    pub regroup_s: f64,
    /// The time of the update that was in progress and was computed again. `None` if it is not done.
    pub repeated_update_s: Option<f64>,
}

/// The changes of membership of one process group, in order.
#[derive(Debug, Default)]
pub(super) struct MembershipChanges {
    pub(super) all: Vec<MembershipChange>,
    /// For each current rank its number at the start. `None` if events are missing.
    numbers: Option<Vec<usize>>,
}

impl MembershipChanges {
    pub(super) fn start(&mut self, world: usize) {
        self.numbers = Some((0..world).collect());
    }

    pub(super) fn add_lost(&mut self, update: u64, lost: LostRecord) {
        self.open(update).lost.push(lost);
    }

    pub(super) fn add_left(&mut self, update: u64, left: LeftRecord) {
        self.open(update).left.push(left);
    }

    /// The event of a new lead is before those of the loss.
    pub(super) fn add_lead(&mut self, update: u64, host: String) {
        self.open(update).new_lead = Some(LeadRecord { rank: None, host });
    }

    /// The others continue. `regroups` counts regroups since the start; `world_before` is the number
    /// of ranks before the loss, if it is known.
    pub(super) fn regrouped(
        &mut self,
        update: u64,
        regroups: u64,
        world_before: Option<usize>,
        continuation: Continuation,
    ) {
        // A new lead without a shared directory writes a file of its own, without a `start`. Before
        // the first regroup, all ranks still have their numbers of the start.
        let first = (regroups == 1).then(|| world_before.map(|world| (0..world).collect())).flatten();
        let before = self.numbers.take().or(first);
        let world = continuation.world;
        let change = self.open(update);
        let gone = change.lost.iter().map(|lost| lost.rank).chain(change.left.iter().map(|left| left.rank));
        let gone: Vec<usize> = gone.collect();
        let left = before.map(|mut numbers: Vec<usize>| {
            numbers.retain(|number| !gone.contains(number));
            numbers
        });
        // Otherwise events of an earlier loss are missing: a lead may be killed before it writes
        // them.
        let numbers = left.filter(|numbers| numbers.len() == world);
        if let Some(lead) = &mut change.new_lead {
            lead.rank = numbers.as_ref().and_then(|numbers| numbers.first().copied());
        }
        change.continued = Some(continuation);
        self.numbers = numbers;
    }

    /// A process has joined as rank `number`; the group has `world` ranks now.
    pub(super) fn joined(&mut self, number: usize, world: usize) {
        let numbers = self.numbers.take().map(|numbers| numbers.into_iter().chain([number]).collect::<Vec<usize>>());
        self.numbers = numbers.filter(|numbers| numbers.len() == world);
    }

    /// The update `update` is done.
    pub(super) fn add_update(&mut self, update: u64, seconds: f64) {
        if let Some(change) = self.all.last_mut()
            && let Some(continuation) = &mut change.continued
            && change.update + 1 == update
            // A rank leaves between updates.
            && !change.lost.is_empty()
        {
            continuation.repeated_update_s = Some(seconds);
        }
    }

    /// The number at the start of a current rank. If it is not known, the current number.
    pub(super) fn number_at_start(&self, rank: usize) -> usize {
        self.numbers.as_ref().and_then(|numbers| numbers.get(rank).copied()).unwrap_or(rank)
    }

    /// Whether current ranks cannot be translated to numbers at the start.
    pub(super) fn are_numbers_unknown(&self) -> bool {
        self.numbers.is_none() && self.all.iter().any(|change| change.continued.is_some())
    }

    /// Total time until losses were noticed.
    pub(super) fn interrupted_s(&self) -> f64 {
        self.continued().map(|continuation| continuation.interrupted_s).sum::<f64>()
    }

    /// Total time of regrouping.
    pub(super) fn regroup_s(&self) -> f64 {
        self.continued().map(|continuation| continuation.regroup_s).sum::<f64>()
    }

    fn continued(&self) -> impl Iterator<Item = &Continuation> {
        self.all.iter().filter_map(|change| change.continued.as_ref())
    }

    /// The change that is not complete, or a new one.
    fn open(&mut self, update: u64) -> &mut MembershipChange {
        let is_open = self.all.last().is_some_and(|last| last.continued.is_none());
        if !is_open {
            self.all.push(MembershipChange::default());
        }
        let at = self.all.len() - 1;
        self.all[at].update = update;
        &mut self.all[at]
    }
}
