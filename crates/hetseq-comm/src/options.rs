//! How a group behaves: its deadlines, what it binds to, and the shared secret.
//!
//! Not who is in it (that is [`crate::Place`]) nor what must match (that is [`crate::Identity`]). The trainer fills it
//! from the section `comm` of the config.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::secret::Secret;

/// Settings of a [`crate::Group`]. Ranks need not have equal ones, except for `secret` and `encrypt`; of `silence` they tell
/// each other, so that every rank beats often enough for the strictest.
#[derive(Clone, Debug)]
pub struct Options {
    /// The longest outage of the network that the group survives. A peer from which not one byte
    /// came for this long, and for as long as TCP may need to notice that the network is back
    /// (`pace.rs`), is dead. Heartbeats flow also while a rank computes.
    pub silence: Duration,
    /// A peer that is alive but does not send what is awaited for this long has failed. Must exceed the longest thing
    /// one rank does while the others wait, such as saving a checkpoint or compiling kernels.
    pub progress: Duration,
    /// How long to wait until all ranks have come.
    pub join: Duration,
    /// Name or IP address of the network interface to bind to and to announce; by default every interface is bound and
    /// the address of the connection to rank 0 is announced.
    pub interface: Option<String>,
    /// Ports for the connections between ranks, for sites with a firewall; by default the system chooses.
    pub ports: Option<RangeInclusive<u16>>,
    /// Shared by all ranks; a process that does not know it cannot join.
    pub secret: Secret,
    /// Encrypt everything between the ranks. Equal on all of them; needs a secret.
    pub encrypt: bool,
    /// What this rank is called in messages; by default the host name.
    pub name: Option<String>,
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
        }
    }
}

impl Options {
    /// The same with limits that clocks and sockets can hold: "for ever" becomes a year, zero a millisecond.
    pub(crate) fn bounded(&self) -> Options {
        let bound = |limit: Duration| limit.clamp(Duration::from_millis(1), Duration::from_secs(365 * 86_400));
        Options { silence: bound(self.silence), progress: bound(self.progress), join: bound(self.join), ..self.clone() }
    }

    /// The name shown for this rank.
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
