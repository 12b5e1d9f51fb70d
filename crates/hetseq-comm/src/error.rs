//! Everything that can go wrong with a group, as one enum whose messages say what happened, where, and
//! what to do.
//!
//! The trainer shows these to the user as they are. Text that came from a peer passes through [`shown`] or [`shown_line`].

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::frame::FrameError;
use crate::secret::ADVICE;

/// What this rank was doing when something failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The collective, such as `reduce_scatter`.
    pub phase: &'static str,
    /// What the trainer last passed to [`crate::Group::at`], such as `update 8,412`; may be empty.
    pub context: String,
}

impl fmt::Display for Moment {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "during {}", self.phase)?;
        if !self.context.is_empty() {
            write!(out, " at {}", self.context)?;
        }
        Ok(())
    }
}

/// Why a group could not be formed or cannot go on. After an error from a collective the group is
/// unusable; start a new one. (The moment is boxed to keep the error, and every result that carries it, small.)
#[derive(Debug, Error)]
pub enum CommError {
    #[error(
        "rank {rank} ({host}) sent nothing for {} {moment}: its machine or the network to it is down. \
         Check that machine, then resume from the last checkpoint",
        seconds(.silence)
    )]
    Silent { rank: usize, host: String, silence: Duration, moment: Box<Moment> },

    #[error(
        "rank {rank} ({host}) is alive but did not do its part for {} {moment}. See its log; if it \
         only needs longer, raise comm.progress_s",
        seconds(.limit)
    )]
    NoProgress { rank: usize, host: String, limit: Duration, moment: Box<Moment> },

    #[error(
        "rank {rank} ({host}) left {moment}: {detail}. See its log for the cause, then resume from the \
         last checkpoint"
    )]
    Left { rank: usize, host: String, detail: String, moment: Box<Moment> },

    #[error("rank {rank} ({host}) stopped: {reason} (learned {moment})")]
    Stopped { rank: usize, host: String, reason: String, moment: Box<Moment> },

    #[error("rank {rank} ({host}) sent something unusable {moment}: {fault}")]
    Garbled { rank: usize, host: String, fault: FrameError, moment: Box<Moment> },

    #[error(
        "rank {rank} ({host}) is in {theirs} while this rank is in {ours} {moment}: the ranks do not \
         run the same sequence of operations, which is a defect in the program; please report it"
    )]
    OutOfStep { rank: usize, host: String, theirs: String, ours: String, moment: Box<Moment> },

    #[error(
        "rank {rank} ({host}) sent {sent} where this rank expects {due} {moment}: the vectors or \
         shards of the ranks differ in length"
    )]
    PartSize { rank: usize, host: String, sent: String, due: String, moment: Box<Moment> },

    #[error("{operation} was called wrongly: {what}")]
    Misuse { operation: &'static str, what: String },

    #[error("this group has already failed and cannot be used any more: {first}")]
    AlreadyFailed { first: String },

    #[error("cannot tell this process's place among the ranks: {problem}")]
    Place { problem: String },

    #[error(
        "the ranks differ in what must be equal, so the run cannot start:\n  {}\nGive every rank the \
         same configuration and data, and install the same build of hetseq on all machines",
        .differences.join("\n  ")
    )]
    Mismatch { differences: Vec<String> },

    #[error("{by} refused this rank: {reason}")]
    Refused { by: String, reason: String },

    #[error(
        "{} of {world} did not come to {rendezvous} within {}. Check that every rank was started with \
         this address and that no firewall is in between{}",
        named_ranks(.ranks), seconds(.waited), noted(.notes)
    )]
    Missing {
        ranks: Vec<usize>,
        world: usize,
        rendezvous: String,
        waited: Duration,
        /// Connections that were turned away meanwhile and why: often the cause.
        notes: Vec<String>,
    },

    #[error(
        "cannot reach {what} at {address} within {}: {detail}. Check that it runs there, the address, \
         the firewall and, with several networks, comm.interface",
        seconds(.waited)
    )]
    Unreachable { what: String, address: String, waited: Duration, detail: String },

    #[error(
        "cannot leave this run's secret in {path}: {reason}. Make that directory one that can be written (run.dir), or \
         {ADVICE}"
    )]
    SecretFile { path: String, reason: String },

    #[error(
        "this rank has not got the run's secret within {}: rank 0 leaves it in its run directory, and here {path} is no \
         use: {reason}. If this machine does not see rank 0's run directory, {ADVICE}",
        seconds(.waited)
    )]
    NoSecret { path: String, reason: String, waited: Duration },

    #[error("{problem}")]
    WeakSecret { problem: String },

    #[error(
        "the directory {path} is no place to meet: {reason}. Name one that all ranks share and can write in \
         (file:///shared/dir)"
    )]
    Directory { path: String, reason: String },

    #[error(
        "found no rank 0 at {at} within {}: {detail}. Check that all ranks share that directory, that one of them is rank \
         0 or has no rank at all, and that no firewall is in between (comm.ports)",
        seconds(.waited)
    )]
    NoMeeting { at: String, waited: Duration, detail: String },

    #[error("meeting the other ranks failed at {with}: {detail}")]
    Rendezvous { with: String, detail: String },

    #[error(
        "the address {address} is already in use. Either another rank 0 (or an earlier run) is still \
         there: stop it; or another program owns the port: choose another one (tcp://host:PORT or \
         MASTER_PORT) on all ranks"
    )]
    AddressInUse { address: String },

    #[error("no free port in {first}-{last} for connections between ranks. Widen comm.ports")]
    NoFreePort { first: u16, last: u16 },

    #[error("cannot listen on {address}: {reason}")]
    Listen { address: String, reason: std::io::Error },

    #[error(
        "there is no network interface or address {wanted:?} here; there are: {available}. Correct \
         comm.interface"
    )]
    NoInterface { wanted: String, available: String },

    #[error("the system could not {what}: {reason}")]
    System { what: &'static str, reason: std::io::Error },
}

/// `60 s`, `0.3 s`: a limit as a user would write it.
fn seconds(duration: &Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

/// `ranks 1, 3` or `rank 2`.
pub(crate) fn named_ranks(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, list.join(", "))
}

fn noted(notes: &[String]) -> String {
    if notes.is_empty() {
        return String::new();
    }
    format!(". Turned away meanwhile: {}", notes.join("; "))
}

/// Text from a peer, made safe for a terminal and cut to `limit_bytes`. It may have several lines; see [`shown_line`].
pub(crate) fn shown(text: &str, limit_bytes: usize) -> String {
    kept(text, limit_bytes, |character| !character.is_control() || character == '\n')
}

/// The same in one line, for names, addresses and whatever goes into a log: nobody may add lines of their own to that.
pub(crate) fn shown_line(text: &str, limit_bytes: usize) -> String {
    kept(text, limit_bytes, |character| !character.is_control() && !matches!(character, '\u{2028}' | '\u{2029}'))
}

fn kept(text: &str, limit_bytes: usize, keep: impl Fn(char) -> bool) -> String {
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
    fn a_message_says_who_what_and_where() {
        let moment = Box::new(Moment { phase: "reduce_scatter", context: "update 8,412".into() });
        let silence = Duration::from_secs(60);
        let error = CommError::Silent { rank: 3, host: "gpu-mi50".into(), silence, moment };
        let text = error.to_string();
        assert!(
            text.starts_with("rank 3 (gpu-mi50) sent nothing for 60 s during reduce_scatter at update 8,412:"),
            "{text}"
        );
    }

    #[test]
    fn peer_text_cannot_steer_a_terminal() {
        assert_eq!(shown("a\x1b[31mb\nc", 100), "a [31mb\nc");
        assert_eq!(shown_line("a\x1b[31mb\nc\r\u{85}\u{2028}d", 100), "a [31mb c   d");
        assert_eq!(shown("äöü", 3), "ä");
    }
}
