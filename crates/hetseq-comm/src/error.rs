//! The errors of a group. Each message says what happened, where, and what to do.
//!
//! The trainer shows them to the user unchanged. Text that came from a peer passes through
//! [`shown`] or [`shown_line`].

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::frame::FrameError;
use crate::secret::ADVICE;

const SAME_ON_ALL: &str =
    "Give every rank the same configuration and data, and install the same build of hetseq on all machines";

/// The operation in which this rank failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// The collective, such as `reduce_scatter`.
    pub operation: &'static str,
    /// The last argument of [`crate::Group::at`], such as `update 8,412`; may be empty.
    pub context: String,
}

impl fmt::Display for Phase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "during {}", self.operation)?;
        if !self.context.is_empty() {
            write!(out, " at {}", self.context)?;
        }
        Ok(())
    }
}

/// The connections that rank 0 rejected while it waited, and why: usually the cause if ranks are
/// missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejections {
    /// How refused ranks differ from rank 0: almost always the cause.
    pub differences: Vec<String>,
    /// All other rejections.
    pub notes: Vec<String>,
}

/// The reason why a group could not be formed or cannot continue. After an error from a collective
/// the group is unusable; start a new one. Phase and rejections are boxed to keep the error, and
/// every result that carries it, small.
#[derive(Debug, Error)]
pub enum CommError {
    #[error(
        "rank {rank} ({host}) sent nothing for {} {phase}: its machine or the network to it is down. \
         Check that machine, then resume from the last checkpoint",
        seconds(.silence)
    )]
    Silent { rank: usize, host: String, silence: Duration, phase: Box<Phase> },

    #[error(
        "rank {rank} ({host}) is alive but made no progress for {} {phase}. See its log; if it \
         only needs more time, raise comm.progress_s",
        seconds(.limit)
    )]
    NoProgress { rank: usize, host: String, limit: Duration, phase: Box<Phase> },

    #[error(
        "rank {rank} ({host}) left {phase}: {detail}. See its log for the cause, then resume from the \
         last checkpoint"
    )]
    Left { rank: usize, host: String, detail: String, phase: Box<Phase> },

    #[error("rank {rank} ({host}) stopped: {reason} (reported {phase})")]
    Stopped { rank: usize, host: String, reason: String, phase: Box<Phase> },

    #[error("rank {rank} ({host}) failed: {reason} (reported {phase})")]
    Failed { rank: usize, host: String, reason: String, phase: Box<Phase> },

    /// Not a failure by itself: the ranks must agree on a new membership.
    #[error("rank {rank} ({host}) has lost its connection to another rank {phase}")]
    Regrouping { rank: usize, host: String, phase: Box<Phase> },

    #[error(
        "this rank and the ranks that it still reaches are {reachable} of {world}, which is no majority: {lost}. \
         The rest may still be training, so this part stops. Start it again on all machines; with a run directory that \
         all machines share, a run continues with any number of them"
    )]
    NoQuorum { reachable: usize, world: usize, lost: String },

    #[error(
        "the other ranks continue without this one, because they could not reach it ({lost}). Nothing is \
         lost: they have its samples"
    )]
    Excluded { lost: String },

    #[error("{left} of {world} ranks are left, and elastic.min_workers = {min_workers}: {lost}")]
    TooFew { left: usize, world: usize, min_workers: usize, lost: String },

    #[error(
        "the run on {hosts} did not admit this process: {reason}. Either it has ended, or this machine cannot reach all of \
         its ranks: see the logs of both sides, the firewall and, with several networks, comm.interface"
    )]
    GroupGone { hosts: String, reason: String },

    #[error("cannot record the new membership in {path}: {reason}. Make the run directory reachable and start again")]
    MembershipFile { path: String, reason: String },

    #[error("rank {rank} ({host}) sent invalid data {phase}: {fault}")]
    Garbled { rank: usize, host: String, fault: FrameError, phase: Box<Phase> },

    #[error(
        "rank {rank} ({host}) is in {theirs} while this rank is in {ours} {phase}: the ranks do not \
         run the same sequence of operations. This is a bug in hetseq; please report it"
    )]
    OutOfStep { rank: usize, host: String, theirs: String, ours: String, phase: Box<Phase> },

    #[error(
        "rank {rank} ({host}) sent {sent} where this rank expects {expected} {phase}: the vectors or \
         shards of the ranks differ in length"
    )]
    WrongSize { rank: usize, host: String, sent: String, expected: String, phase: Box<Phase> },

    #[error("{operation} was called with invalid arguments: {what}")]
    Misuse { operation: &'static str, what: String },

    #[error("this group has failed before and cannot be used any more: {first}")]
    AlreadyFailed { first: String },

    #[error("cannot determine the rank of this process: {problem}")]
    RankEnv { problem: String },

    #[error(
        "rank 0 refused this rank because it differs:\n  {}\n{SAME_ON_ALL}, then start this rank again: the others \
         wait for it (comm.join_s)",
        .differences.join("\n  ")
    )]
    Mismatch { differences: Vec<String> },

    #[error("the ranks differ:\n  {}\n{SAME_ON_ALL}, then start the job again", .differences.join("\n  "))]
    Differ { differences: Vec<String> },

    #[error(
        "comm.transport = \"mpi\", but this program was built without MPI. Build it with `cargo build --release --features \
         mpi` where mpicc is the one of your site, or leave out comm.transport to use TCP"
    )]
    WithoutMpi,

    #[error(
        "comm.transport = \"mpi\", but this process was not started by a launcher of MPI. Start all ranks together, for \
         example with `mpirun -n 2 hetseq train ...` or `srun hetseq train ...`, or leave out comm.transport to use TCP"
    )]
    NotLaunched,

    #[error(
        "{given_by} say that this process is rank {says} of {of}, but for MPI it is rank {rank} of {world}. This program was \
         built with {library}: start it with the launcher of that library, or with one that supports it (`srun \
         --mpi=list`), and do not set RANK"
    )]
    OtherLauncher { given_by: &'static str, says: usize, of: usize, rank: usize, world: usize, library: String },

    #[error("MPI could not be started: {reason}. Leave out comm.transport to use TCP")]
    Mpi { reason: String },

    #[error("{by} rejected this rank: {reason}")]
    Refused { by: String, reason: String },

    #[error(
        "{} of {world} did not join at {rendezvous} within {}. {}{}",
        named_ranks(.ranks), seconds(.waited), missing_text(.rejections), rejected_text(.rejections)
    )]
    Missing { ranks: Vec<usize>, world: usize, rendezvous: String, waited: Duration, rejections: Box<Rejections> },

    #[error(
        "cannot reach {what} at {address} within {}: {detail}. Check that it runs there, the address, \
         the firewall and, with several networks, comm.interface",
        seconds(.waited)
    )]
    Unreachable { what: String, address: String, waited: Duration, detail: String },

    #[error("cannot write the run secret to {path}: {reason}. Make that directory writable (run.dir), or {ADVICE}")]
    SecretFile { path: String, reason: String },

    #[error(
        "timed out after {} waiting for the run secret, which rank 0 writes to its run directory; cannot use {path}: \
         {reason}. If this machine does not share rank 0's run directory, {ADVICE}",
        seconds(.waited)
    )]
    NoSecret { path: String, reason: String, waited: Duration },

    #[error("{problem}")]
    WeakSecret { problem: String },

    #[error(
        "cannot use the directory {path} for the rendezvous: {reason}. Choose one that all ranks share and can write to \
         (file:///shared/dir)"
    )]
    Directory { path: String, reason: String },

    #[error(
        "found no rank 0 at {at} within {}: {detail}. Check that all ranks share that directory, that one of them is rank \
         0 or has no rank assigned, and that no firewall is in between (comm.ports)",
        seconds(.waited)
    )]
    NoRank0 { at: String, waited: Duration, detail: String },

    #[error("the rendezvous with {with} failed: {detail}")]
    Rendezvous { with: String, detail: String },

    #[error(
        "the address {address} is already in use. Either another rank 0 or an earlier run still \
         uses it: stop that one. Or another program uses the port: choose another port (tcp://host:PORT or \
         MASTER_PORT) on all ranks"
    )]
    AddressInUse { address: String },

    #[error("no free port in {first}-{last} for connections between ranks. Widen comm.ports")]
    NoFreePort { first: u16, last: u16 },

    #[error("cannot listen on {address}: {reason}{}", listen_advice(reason))]
    Listen { address: String, reason: std::io::Error },

    #[error(
        "no network interface or address {wanted:?} on this machine; available: {available}. Correct \
         comm.interface"
    )]
    NoInterface { wanted: String, available: String },

    #[error("the system could not {what}: {reason}")]
    System { what: &'static str, reason: std::io::Error },
}

impl CommError {
    /// Returns whether ranks were lost that the others can continue without, by
    /// [`crate::Group::regroup`].
    pub fn is_lost_rank(&self) -> bool {
        matches!(
            self,
            CommError::Silent { .. }
                | CommError::NoProgress { .. }
                | CommError::Left { .. }
                | CommError::Failed { .. }
                | CommError::Regrouping { .. }
                | CommError::Garbled { .. }
        )
    }

    /// Returns whether this rank must stop though nothing is wrong with it: too few ranks are left,
    /// or the others continue without it.
    pub fn is_cut_off(&self) -> bool {
        matches!(
            self,
            CommError::NoQuorum { .. }
                | CommError::Excluded { .. }
                | CommError::TooFew { .. }
                | CommError::MembershipFile { .. }
        )
    }
}

/// Formats a limit as a user would write it: `60 s`, `0.3 s`.
fn seconds(duration: &Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

/// Formats `ranks 1, 3` or `rank 2`.
pub(crate) fn named_ranks(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, list.join(", "))
}

/// What to do about missing ranks.
fn missing_text(rejections: &Rejections) -> String {
    if rejections.differences.is_empty() {
        return "Check that every rank was started with this address and that no firewall is in between".to_owned();
    }
    let differences = rejections.differences.join("\n  ");
    format!("Rank 0 refused processes that differ from it:\n  {differences}\n{SAME_ON_ALL}, then start all ranks again")
}

/// What to do about a port that cannot be opened.
fn listen_advice(reason: &std::io::Error) -> &'static str {
    match reason.kind() {
        std::io::ErrorKind::PermissionDenied => {
            ". Ports below 1024 need privileges: choose a higher one (tcp://host:PORT or MASTER_PORT) on all ranks"
        }
        _ => "",
    }
}

fn rejected_text(rejections: &Rejections) -> String {
    if rejections.notes.is_empty() {
        return String::new();
    }
    format!(". Rejected while waiting: {}", rejections.notes.join("; "))
}

/// Makes text from a peer safe for a terminal and cuts it to `limit_bytes`. The result may have
/// several lines; see [`shown_line`].
pub(crate) fn shown(text: &str, limit_bytes: usize) -> String {
    sanitized(text, limit_bytes, |character| !character.is_control() || character == '\n')
}

/// Like [`shown`], but in one line, for names, addresses and logs: a peer must not be able to add
/// log lines.
pub(crate) fn shown_line(text: &str, limit_bytes: usize) -> String {
    sanitized(text, limit_bytes, |character| !character.is_control() && !matches!(character, '\u{2028}' | '\u{2029}'))
}

fn sanitized(text: &str, limit_bytes: usize, keep: impl Fn(char) -> bool) -> String {
    let mut safe = String::new();
    for character in text.chars() {
        if safe.len() + character.len_utf8() > limit_bytes {
            break;
        }
        safe.push(if keep(character) { character } else { ' ' });
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_rank_problem_and_phase() {
        let phase = Box::new(Phase { operation: "reduce_scatter", context: "update 8,412".into() });
        let silence = Duration::from_secs(60);
        let error = CommError::Silent { rank: 3, host: "gpu-mi50".into(), silence, phase };
        let text = error.to_string();
        assert!(
            text.starts_with("rank 3 (gpu-mi50) sent nothing for 60 s during reduce_scatter at update 8,412:"),
            "{text}"
        );
    }

    #[test]
    fn peer_text_cannot_control_a_terminal() {
        assert_eq!(shown("a\x1b[31mb\nc", 100), "a [31mb\nc");
        assert_eq!(shown_line("a\x1b[31mb\nc\r\u{85}\u{2028}d", 100), "a [31mb c   d");
        assert_eq!(shown("äöü", 3), "ä");
    }
}
