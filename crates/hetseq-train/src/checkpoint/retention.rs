//! Which checkpoints may go. Pure.

/// `steps` are those that exist, oldest first; the newest `keep` and the `protected` ones stay.
pub(super) fn expired(steps: &[u64], keep: usize, protected: &[u64]) -> Vec<u64> {
    let old = steps.len().saturating_sub(keep);
    steps[..old].iter().copied().filter(|step| !protected.contains(step)).collect()
}

/// What may go where there is no room for one more, before that one is complete: all but the newest, also those that would be
/// kept if there were room. The first should go first.
pub(super) fn expendable(steps: &[u64], protected: &[u64]) -> Vec<u64> {
    expired(steps, 1, protected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_and_the_best_stay() {
        assert_eq!(expired(&[1, 2, 3, 4], 2, &[1]), [2]);
        assert_eq!(expired(&[1, 2], 3, &[]), [] as [u64; 0]);
        assert_eq!(expired(&[1, 2, 3], 1, &[3]), [1, 2]);
    }

    #[test]
    fn room_is_never_made_by_removing_the_newest_or_the_best() {
        assert_eq!(expendable(&[1, 2, 3], &[]), [1, 2]);
        assert_eq!(expendable(&[1, 2, 3], &[1]), [2]);
        assert_eq!(expendable(&[1, 2], &[]), [1]);
        assert_eq!(expendable(&[1, 2], &[1]), [] as [u64; 0]);
        assert_eq!(expendable(&[3], &[]), [] as [u64; 0]);
    }
}
