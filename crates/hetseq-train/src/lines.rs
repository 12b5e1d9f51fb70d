//! How fast the lines between the ranks are, as the planner wants to know it. Measured before training, and by `hetseq bench comm`.

use std::time::Duration;

use hetseq_balance::Line;
use hetseq_comm::{CommError, Group};

/// How long all lines of a group may be measured.
const BUDGET: Duration = Duration::from_secs(3);

/// Per rank; the same on all. A collective.
pub fn measure(group: &mut Group) -> Result<Vec<Line>, CommError> {
    let line = |line: hetseq_comm::Line| Line {
        bytes_per_s: line.bytes_per_s as f64,
        latency_s: line.latency_us as f64 * 1e-6,
    };
    Ok(group.measure_lines(BUDGET)?.into_iter().map(line).collect())
}
