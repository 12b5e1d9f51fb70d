//! The factor by which losses are multiplied where products are computed in `f16`, so that small gradients do not vanish
//! (Micikevicius et al., 2018). Pure: all ranks hear the same votes and keep the same scale.
//!
//! An update whose gradients overflow on any device is skipped by all, and the scale is halved; when it has been good for long,
//! it is doubled.

use serde::{Deserialize, Serialize};

/// Powers of two, so that dividing by them is exact.
const FIRST: f32 = 65_536.0;
const MOST: f32 = 16_777_216.0;
/// So many updates in a row without an overflow.
const GOOD: u32 = 2000;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct LossScale {
    scale: f32,
    /// Updates since it was last changed.
    good: u32,
}

impl Default for LossScale {
    fn default() -> Self {
        LossScale { scale: FIRST, good: 0 }
    }
}

impl LossScale {
    pub(crate) fn get(&self) -> f32 {
        self.scale
    }

    /// What follows from an update in which gradients have overflowed or not. False if the scale is as small as it can be: then it
    /// is not the scale that makes them overflow.
    pub(crate) fn learn(&mut self, has_overflowed: bool) -> bool {
        if has_overflowed {
            let could_shrink = self.scale > 1.0;
            *self = LossScale { scale: (self.scale / 2.0).max(1.0), good: 0 };
            return could_shrink;
        }
        self.good += 1;
        if self.good >= GOOD {
            *self = LossScale { scale: (self.scale * 2.0).min(MOST), good: 0 };
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_shrinks_at_once_and_grows_slowly() {
        let mut scale = LossScale::default();
        assert!(scale.learn(true));
        assert_eq!(scale.get(), FIRST / 2.0);
        for _ in 0..GOOD - 1 {
            scale.learn(false);
        }
        assert_eq!(scale.get(), FIRST / 2.0);
        scale.learn(false);
        assert_eq!(scale.get(), FIRST);
        // An overflow begins the count anew.
        for _ in 0..GOOD - 1 {
            scale.learn(false);
        }
        scale.learn(true);
        scale.learn(false);
        assert_eq!(scale.get(), FIRST / 2.0);
    }

    #[test]
    fn it_stays_a_power_of_two_within_bounds() {
        let mut scale = LossScale::default();
        for _ in 0..20 * GOOD {
            scale.learn(false);
        }
        assert_eq!(scale.get(), MOST);
        let shrunk = (0..).take_while(|_| scale.learn(true)).count();
        assert_eq!((shrunk, scale.get()), (24, 1.0));
    }
}
