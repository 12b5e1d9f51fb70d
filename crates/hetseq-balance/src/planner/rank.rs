//! A rank's time besides computing: its own work on the host, and its part of the exchange.
//!
//! Called by the planner only.

use crate::drift::SmoothedSeconds;

/// The shortest exchange in this many blocks is an upper bound for the time of an exchange.
const EXCHANGE_BLOCKS: usize = 8;

/// A rank's times.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rank {
    pub(super) host: SmoothedSeconds,
    /// The exchange time that follows from the speed of the rank's link.
    pub(super) link_s: f64,
    /// The measured time in which the rank was busy with the exchange.
    busy: SmoothedSeconds,
    /// The shortest exchange of each of the last blocks, waiting included.
    shortest_s: Vec<f64>,
    /// The shortest exchange of this block.
    block_shortest_s: Option<f64>,
}

impl Rank {
    pub(super) fn new(host_s: f64, link_s: f64) -> Rank {
        Rank {
            host: SmoothedSeconds::new(host_s),
            link_s,
            busy: SmoothedSeconds::new(0.0),
            shortest_s: Vec::new(),
            block_shortest_s: None,
        }
    }

    /// Adds an exchange by the microseconds in which the rank was busy and in which it waited.
    pub(super) fn observe_exchange(&mut self, busy: u64, waited: u64) {
        self.busy.observe(busy);
        let took_s = busy.saturating_add(waited) as f64 * 1e-6;
        self.block_shortest_s = Some(self.block_shortest_s.map_or(took_s, |shortest_s| shortest_s.min(took_s)));
    }

    /// Ends a block that lasted `block_s`.
    pub(super) fn close(&mut self, block_s: f64) {
        self.host.close(block_s);
        self.busy.close(block_s);
        self.shortest_s.extend(self.block_shortest_s.take());
        if self.shortest_s.len() > EXCHANGE_BLOCKS {
            self.shortest_s.remove(0);
        }
    }

    /// Own time for the exchange: by the link's speed, but at most the shortest measured exchange,
    /// since a measured link may show the limit of the other end; and at least the time in which
    /// the rank is busy.
    pub(super) fn net_s(&self) -> f64 {
        let shortest_s = self.shortest_s.iter().copied().fold(f64::INFINITY, f64::min);
        self.link_s.min(shortest_s).max(self.busy.seconds())
    }

    /// The standard deviation of host and exchange together.
    pub(super) fn error_s(&self) -> f64 {
        self.host.error_s() + self.busy.error_s()
    }
}
