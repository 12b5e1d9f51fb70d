//! What a rank takes beside computing: its own work on the host, and its part of the exchange.
//!
//! Called by the planner only.

use crate::drift::Smoothed;

/// In so many blocks the shortest exchange tells how long one can take at most.
const EXCHANGES: usize = 8;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rank {
    pub(super) host: Smoothed,
    /// What the exchange takes by the rank's line.
    pub(super) line_s: f64,
    /// How long the rank was seen to be busy with it.
    busy: Smoothed,
    /// How long the shortest of each of the last blocks took with all waiting.
    took_s: Vec<f64>,
    /// The shortest of this block.
    least_s: Option<f64>,
}

impl Rank {
    pub(super) fn new(host_s: f64, line_s: f64) -> Rank {
        Rank { host: Smoothed::new(host_s), line_s, busy: Smoothed::new(0.0), took_s: Vec::new(), least_s: None }
    }

    /// An exchange is over, for which the rank was busy and in which it waited for so many microseconds.
    pub(super) fn observe_exchange(&mut self, busy: u64, waited: u64) {
        self.busy.observe(busy);
        let took_s = busy.saturating_add(waited) as f64 * 1e-6;
        self.least_s = Some(self.least_s.map_or(took_s, |least_s| least_s.min(took_s)));
    }

    /// The block is over, and lasted `block_s`.
    pub(super) fn close(&mut self, block_s: f64) {
        self.host.close(block_s);
        self.busy.close(block_s);
        self.took_s.extend(self.least_s.take());
        if self.took_s.len() > EXCHANGES {
            self.took_s.remove(0);
        }
    }

    /// Own time for the exchange: by its line, but no longer than one was seen to take, since a measured link may show the
    /// limit of the other end; and no shorter than the rank is busy with it.
    pub(super) fn net_s(&self) -> f64 {
        let least_s = self.took_s.iter().copied().fold(f64::INFINITY, f64::min);
        self.line_s.min(least_s).max(self.busy.seconds())
    }

    /// How far off host and exchange together may be.
    pub(super) fn error_s(&self) -> f64 {
        self.host.error_s() + self.busy.error_s()
    }
}
