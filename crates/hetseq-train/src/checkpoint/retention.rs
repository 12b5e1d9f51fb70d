//! Decides which checkpoints to remove. Pure functions, called by `store.rs`.

/// Returns the checkpoints to remove: all of `steps` (existing ones, oldest first) except the
/// newest `keep` and the `protected` ones.
pub(super) fn expired(steps: &[u64], keep: usize, protected: &[u64]) -> Vec<u64> {
    let old = steps.len().saturating_sub(keep);
    steps[..old].iter().copied().filter(|step| !protected.contains(step)).collect()
}

/// Returns the checkpoints that may be removed on a full disk before the new one is complete: all
/// but the newest and the protected ones, even if `keep` covers them. In order of removal.
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
    fn a_full_disk_never_removes_the_newest_or_the_best() {
        assert_eq!(expendable(&[1, 2, 3], &[]), [1, 2]);
        assert_eq!(expendable(&[1, 2, 3], &[1]), [2]);
        assert_eq!(expendable(&[1, 2], &[]), [1]);
        assert_eq!(expendable(&[1, 2], &[1]), [] as [u64; 0]);
        assert_eq!(expendable(&[3], &[]), [] as [u64; 0]);
    }
}
