//! How many tokens a device takes in one micro-batch: what was measured or set, less for a while after its memory ran out.
//!
//! Memory may run out because another program has taken it, so that a smaller cap is not for good: after some updates it
//! doubles, until it is what it was. If memory runs out again, the next try comes later. Pure; counts updates, reads no clock.

/// Updates until a larger cap is tried for the first time; twice as many after each time that memory ran out again.
const FIRST_WAIT: u32 = 100;
const LONGEST_WAIT: u32 = 6_400;
/// Updates are planned ahead, so that memory may run out again soon for the same reason.
const SAME_CAUSE: u32 = 16;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenCap {
    /// As measured or set.
    usual: Option<u32>,
    reduced: Option<Reduced>,
    /// Updates to wait after memory has run out the next time.
    wait: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Reduced {
    tokens: u32,
    /// From this on it is no limit any more: what had not fitted.
    enough: u32,
    /// Updates since memory ran out or the cap grew, and how many it takes to grow.
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

    /// What holds now.
    pub(crate) fn tokens(&self) -> Option<u32> {
        self.reduced.map(|reduced| reduced.tokens).into_iter().chain(self.usual).min()
    }

    /// Memory ran out, and at most `tokens` fitted. Returns for how many updates that holds.
    pub(crate) fn ran_out(&mut self, tokens: u32) -> u32 {
        let tokens = tokens.max(1);
        if let Some(reduced) = self.reduced.as_mut().filter(|reduced| reduced.calm < SAME_CAUSE) {
            (reduced.calm, reduced.tokens) = (0, reduced.tokens.min(tokens));
            return reduced.wait;
        }
        let before = self.reduced.map_or(0, |reduced| reduced.enough);
        let wait = self.wait;
        self.reduced = Some(Reduced { tokens, enough: before.max(tokens.saturating_mul(2)), calm: 0, wait });
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
            self.reduced.take_if(|reduced| reduced.tokens >= reduced.enough.min(usual));
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
    fn a_cap_recovers_and_a_second_time_later() {
        let mut cap = TokenCap::new(Some(4096));
        assert_eq!(cap.ran_out(1024), FIRST_WAIT);
        // For the same reason: it neither waits longer nor forgets what did not fit.
        assert_eq!(cap.ran_out(512), FIRST_WAIT);
        assert_eq!(cap.ran_out(2048), FIRST_WAIT);
        assert_eq!(after(&mut cap, FIRST_WAIT - 1), Some(512));
        assert_eq!(after(&mut cap, 1), Some(1024));
        // 2,048 tokens had not fitted: if they do now, all do that ever did.
        assert_eq!(after(&mut cap, FIRST_WAIT), Some(4096));
        assert_eq!(cap.ran_out(2048), 2 * FIRST_WAIT);
        assert_eq!(after(&mut cap, 2 * FIRST_WAIT - 1), Some(2048));
        assert_eq!(after(&mut cap, 1), Some(4096));
    }

    #[test]
    fn without_a_usual_cap_there_is_none_again_in_the_end() {
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
