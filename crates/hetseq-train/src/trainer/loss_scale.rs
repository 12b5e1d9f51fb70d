//! Dynamic loss scaling: the factor of losses where products are computed in `f16`, so that small
//! gradients do not vanish (Micikevicius et al., 2018). Pure: all ranks get the same votes and keep
//! the same scale.
//!
//! If gradients overflow on any device, all ranks skip the update and halve the scale. After many
//! updates without overflow they double it.

use serde::{Deserialize, Serialize};

/// Powers of two, so that dividing by them is exact.
const INITIAL: f32 = 65_536.0;
const MAX: f32 = 16_777_216.0;
/// The scale is doubled after this many updates in a row without an overflow.
const GROWTH_INTERVAL: u32 = 2000;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct LossScale {
    scale: f32,
    /// Updates since the scale last changed.
    good: u32,
}

impl Default for LossScale {
    fn default() -> Self {
        LossScale { scale: INITIAL, good: 0 }
    }
}

impl LossScale {
    pub(crate) fn get(&self) -> f32 {
        self.scale
    }

    /// Adjusts the scale after an update whose gradients have overflowed or not. Returns false if
    /// they overflowed at the smallest scale: then the scale is not the cause.
    pub(crate) fn adjust(&mut self, has_overflowed: bool) -> bool {
        if has_overflowed {
            let could_shrink = self.scale > 1.0;
            *self = LossScale { scale: (self.scale / 2.0).max(1.0), good: 0 };
            return could_shrink;
        }
        self.good += 1;
        if self.good >= GROWTH_INTERVAL {
            *self = LossScale { scale: (self.scale * 2.0).min(MAX), good: 0 };
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
        assert!(scale.adjust(true));
        assert_eq!(scale.get(), INITIAL / 2.0);
        for _ in 0..GROWTH_INTERVAL - 1 {
            scale.adjust(false);
        }
        assert_eq!(scale.get(), INITIAL / 2.0);
        scale.adjust(false);
        assert_eq!(scale.get(), INITIAL);
        // An overflow restarts the count.
        for _ in 0..GROWTH_INTERVAL - 1 {
            scale.adjust(false);
        }
        scale.adjust(true);
        scale.adjust(false);
        assert_eq!(scale.get(), INITIAL / 2.0);
    }

    #[test]
    fn it_stays_a_power_of_two_within_bounds() {
        let mut scale = LossScale::default();
        for _ in 0..20 * GROWTH_INTERVAL {
            scale.adjust(false);
        }
        assert_eq!(scale.get(), MAX);
        let shrunk = (0..).take_while(|_| scale.adjust(true)).count();
        assert_eq!((shrunk, scale.get()), (24, 1.0));
    }
}
