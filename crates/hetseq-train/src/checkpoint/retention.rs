//! Which checkpoints may go. Pure.

/// `steps` are those that exist, oldest first; the newest `keep` and the best stay.
pub(super) fn expired(steps: &[u64], keep: usize, best: Option<u64>) -> Vec<u64> {
    let old = steps.len().saturating_sub(keep);
    steps[..old].iter().copied().filter(|&step| Some(step) != best).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_and_the_best_stay() {
        assert_eq!(expired(&[1, 2, 3, 4], 2, Some(1)), [2]);
        assert_eq!(expired(&[1, 2], 3, None), [] as [u64; 0]);
        assert_eq!(expired(&[1, 2, 3], 1, Some(3)), [1, 2]);
    }
}
