//! Speed of the links between the ranks, in the planner's form. Measured before training, and by
//! `hetseq bench comm`.

use std::time::Duration;

use hetseq_balance::LinkProfile;
use hetseq_comm::{CommError, Group, LinkSpeed};

/// Time limit for measuring all links of a group.
const BUDGET: Duration = Duration::from_secs(3);

/// Measures the links of each rank. A collective; the result is equal on all ranks.
pub fn measure(group: &mut Group) -> Result<Vec<LinkProfile>, CommError> {
    let link = |link: LinkSpeed| LinkProfile {
        bytes_per_s: link.bytes_per_s as f64,
        latency_s: link.latency_us as f64 * 1e-6,
    };
    Ok(group.measure_links(BUDGET)?.into_iter().map(link).collect())
}
