//! The largest number of tokens in a device's micro-batch: measured or set, and reduced for a while
//! after its memory ran out.
//!
//! Another program may have taken the memory, so a smaller cap is not permanent: after some updates
//! it doubles, until it has its old value. If memory runs out again, the next attempt comes later.
//! Pure: it counts updates and reads no clock. Called by the planner.

/// Updates until a larger cap is tried for the first time; doubled each time that memory runs out
/// again.
const FIRST_WAIT: u32 = 100;
const LONGEST_WAIT: u32 = 6_400;
/// Updates are planned ahead, so memory may soon run out again for the same reason.
const SAME_CAUSE: u32 = 16;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenCap {
    /// Measured or set.
    usual: Option<u32>,
    reduced: Option<Reduced>,
    /// Updates to wait the next time that memory runs out.
    wait: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Reduced {
    tokens: u32,
    /// The number of tokens that did not fit; at this value the reduction ends.
    did_not_fit: u32,
    /// Updates since memory ran out or the cap grew, and the number after which it grows.
    calm: u32,
    wait: u32,
}

impl TokenCap {
    pub(crate) fn new(usual: Option<u32>) -> TokenCap {
        TokenCap { usual, reduced: None, wait: FIRST_WAIT }
    }

    pub(crate) fn usual(&self) -> Option<u32> {
        self.usual
    }

    /// The current cap.
    pub(crate) fn tokens(&self) -> Option<u32> {
        self.reduced.map(|reduced| reduced.tokens).into_iter().chain(self.usual).min()
    }

    /// Reduces the cap to `tokens`, which did fit, after memory ran out. Returns for how many
    /// updates.
    pub(crate) fn ran_out(&mut self, tokens: u32) -> u32 {
        let tokens = tokens.max(1);
        if let Some(reduced) = self.reduced.as_mut().filter(|reduced| reduced.calm < SAME_CAUSE) {
            (reduced.calm, reduced.tokens) = (0, reduced.tokens.min(tokens));
            return reduced.wait;
        }
        let before = self.reduced.map_or(0, |reduced| reduced.did_not_fit);
        let wait = self.wait;
        self.reduced = Some(Reduced { tokens, did_not_fit: before.max(tokens.saturating_mul(2)), calm: 0, wait });
        self.wait = wait.saturating_mul(2).min(LONGEST_WAIT);
        wait
    }

    /// Counts an update in which memory did not run out.
    pub(crate) fn calm_update(&mut self) {
        let Some(reduced) = &mut self.reduced else { return };
        reduced.calm += 1;
        if reduced.calm >= reduced.wait {
            (reduced.calm, reduced.tokens) = (0, reduced.tokens.saturating_mul(2));
            let usual = self.usual.unwrap_or(u32::MAX);
            self.reduced.take_if(|reduced| reduced.tokens >= reduced.did_not_fit.min(usual));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(cap: &mut TokenCap, updates: u32) -> Option<u32> {
        (0..updates).for_each(|_| cap.calm_update());
        cap.tokens()
    }

    #[test]
    fn a_cap_recovers_and_takes_longer_the_second_time() {
        let mut cap = TokenCap::new(Some(4096));
        assert_eq!(cap.ran_out(1024), FIRST_WAIT);
        // For the same reason: neither the wait nor the size that did not fit changes.
        assert_eq!(cap.ran_out(512), FIRST_WAIT);
        assert_eq!(cap.ran_out(2048), FIRST_WAIT);
        assert_eq!(after(&mut cap, FIRST_WAIT - 1), Some(512));
        assert_eq!(after(&mut cap, 1), Some(1024));
        // 2,048 tokens had not fitted. If they do now, the usual cap does too.
        assert_eq!(after(&mut cap, FIRST_WAIT), Some(4096));
        assert_eq!(cap.ran_out(2048), 2 * FIRST_WAIT);
        assert_eq!(after(&mut cap, 2 * FIRST_WAIT - 1), Some(2048));
        assert_eq!(after(&mut cap, 1), Some(4096));
    }

    #[test]
    fn without_a_usual_cap_the_reduction_ends_without_a_cap() {
        let mut cap = TokenCap::new(None);
        cap.ran_out(4);
        assert_eq!(cap.tokens(), Some(4));
        assert_eq!(after(&mut cap, FIRST_WAIT), None);
        for _ in 0..20 {
            assert!(cap.ran_out(1) <= LONGEST_WAIT);
            after(&mut cap, SAME_CAUSE);
        }
    }

    #[test]
    fn a_smaller_usual_cap_stays() {
        let mut cap = TokenCap::new(Some(100));
        cap.ran_out(4000);
        assert_eq!(cap.tokens(), Some(100));
        assert_eq!(after(&mut cap, FIRST_WAIT), Some(100));
        assert_eq!(cap.usual(), Some(100));
    }
}
