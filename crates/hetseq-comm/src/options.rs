//! Settings of a group: deadlines, network interface and ports, and the shared secret.
//!
//! Not the ranks (see [`crate::RankEnv`]) nor what must match (see [`crate::Identity`]). The
//! trainer fills it from the section `comm` of the config.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::secret::Secret;

/// How ranks exchange data (`comm.transport`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportKind {
    /// TCP connections, which survive the loss of ranks.
    #[default]
    Tcp,
    /// The MPI library that this program was built with (feature `mpi`). Its launcher starts the
    /// ranks.
    Mpi,
}

/// Settings of a [`crate::Group`]. Ranks may differ in all but `secret` and `encrypt`. They
/// exchange `silence`, so that every rank sends heartbeats often enough for the strictest.
#[derive(Clone, Debug)]
pub struct Options {
    /// The longest network outage that the group survives. A peer is dead if not one byte arrived
    /// for this long plus the time that TCP may need to notice that the network is back
    /// (`heartbeat_timing.rs`). Heartbeats continue while a rank computes.
    pub silence: Duration,
    /// A peer that is alive but does not send what is awaited for this long has failed. Must exceed
    /// the longest thing that one rank does while the others wait, such as saving a checkpoint or
    /// compiling kernels.
    pub progress: Duration,
    /// How long to wait until all ranks have joined.
    pub join: Duration,
    /// Name or IP address of the network interface to bind to and to announce. By default every
    /// interface is bound and the address of the connection to rank 0 is announced.
    pub interface: Option<String>,
    /// Ports for the connections between ranks, for sites with a firewall; by default the system
    /// chooses.
    pub ports: Option<RangeInclusive<u16>>,
    /// Shared by all ranks; a process without it cannot join.
    pub secret: Secret,
    /// Whether to encrypt all traffic between ranks. Equal on all of them; needs a secret.
    pub encrypt: bool,
    /// The name of this rank in messages; by default the host name.
    pub name: Option<String>,
    pub transport: TransportKind,
    /// Set by the caller when this process has received SIGTERM. A launcher of MPI sends it when
    /// another rank has died, so ranks that are silent from then on are lost. TCP ignores it.
    pub terminated: Arc<AtomicBool>,
    /// Whether processes may join the group while it trains, and how this one finds such a group.
    /// Either on all ranks or on none.
    pub newcomers: Option<Newcomers>,
}

/// How a process finds a group that trains.
#[derive(Clone, Debug, Default)]
pub struct Newcomers {
    /// `members.json` of the run directory, which says where the last group was. Each rank keeps it.
    pub members_file: PathBuf,
    /// `host:port` of members. If there are any, this process joins the group there and starts none.
    pub join: Vec<String>,
    /// How long to look for it there; by default as long as for ranks at a start.
    pub limit: Option<Duration>,
    /// Rank 0 starts the group with this many ranks, itself included; the others join it later. By
    /// default with all.
    pub start_with: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            silence: Duration::from_secs(60),
            progress: Duration::from_secs(30 * 60),
            join: Duration::from_secs(5 * 60),
            interface: None,
            ports: None,
            secret: Secret::None,
            encrypt: false,
            name: None,
            newcomers: None,
            transport: TransportKind::default(),
            terminated: Arc::default(),
        }
    }
}

impl Options {
    /// Returns the options with limits that clocks and sockets can represent: infinity becomes a
    /// year, zero a millisecond.
    pub(crate) fn bounded(&self) -> Options {
        let bound = |limit: Duration| limit.clamp(Duration::from_millis(1), Duration::from_secs(365 * 86_400));
        Options { silence: bound(self.silence), progress: bound(self.progress), join: bound(self.join), ..self.clone() }
    }

    /// Returns the name of this rank for messages.
    pub(crate) fn shown_name(&self) -> String {
        match &self.name {
            Some(name) if !name.trim().is_empty() => name.trim().to_owned(),
            _ => gethostname::gethostname().to_string_lossy().into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_the_secret() {
        let options = Options { secret: Secret::Given("hunter2".into()), ..Options::default() };
        assert!(!format!("{options:?}").contains("hunter2"));
    }
}
