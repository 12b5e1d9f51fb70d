//! Chooses the members of the next generation, when ranks are lost or a newcomer is admitted.
//!
//! One pure state machine per rank, [`Regroup`], from the first lost link to [`Output::Install`] or
//! [`Output::Stop`]. It decides the member set only: from which update to resume is a plain
//! collective of the new generation. It is not a failure detector and does no I/O; the driver
//! reports lost links and messages, and carries out the outputs, from the rank's own thread.
//!
//! ```text
//! follower:  LinkLost or a message -> Suspect, (Prepare) Promise, (Propose) Accept, (Install)
//! proposer:  LinkLost or a message -> Prepare -> all promises -> Propose -> a quorum -> Install
//!                                                             -> AskDirectory -> answer -> Install
//! ```
//!
//! **A newcomer** is a process that waits, connected to the members. It becomes a member if all
//! chosen members are connected to it; its number is the one after the last rank, and it has no
//! vote. To admit it, all members start their machines without a loss. A member that starts because
//! of a loss knows no newcomer, so then it stays outside. Within a generation all members that know
//! a newcomer know the same one.
//!
//! What the driver guarantees:
//! - Messages of one link arrive in order, at most once, and only within their generation. After
//!   `Install`, messages of the old generation are dropped.
//! - A link that ended for one side is closed, so that the other side loses it, too. It is not
//!   replaced within the generation.
//! - The links of a rank that has stopped are closed, after the messages before its `Stop` have
//!   left. Links to ranks outside of an installed set are closed in the same way.
//! - If [`Regroup::lost`] contains members of the installed set, the machine of the new generation
//!   starts at once with these.

mod event;
mod machine;
mod quorum;
mod rank_set;
mod waiting;

#[cfg(test)]
mod machine_tests;
#[cfg(test)]
mod property_tests;

#[cfg(test)]
pub(crate) use event::Accepted;
pub(crate) use event::{Arbiter, Input, Output, RegroupMessage, StopReason};
pub(crate) use machine::{Regroup, RegroupSetup};
pub(crate) use rank_set::RankSet;
pub(crate) use waiting::Waiting;
