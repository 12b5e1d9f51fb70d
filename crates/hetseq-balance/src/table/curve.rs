//! Seconds as a function of the number of samples of one length in a micro-batch, and the inverse
//! function.
//!
//! Piecewise linear and ascending. Built by the table; `share` evaluates it thousands of times per
//! update.

use std::ops::Deref;

/// A number of samples is as good as the best if its time per sample is within this factor.
const AS_GOOD: f64 = 1.02;

/// Interpolates linearly at `x` between the knots (`xs`, `y`). After the last knot it extrapolates
/// by the last slope, at least in proportion; before the first by the first slope, but not below
/// zero at zero.
pub(super) fn interpolate(xs: &[u32], y: impl Fn(usize) -> f64, x: f64) -> f64 {
    let at = |i: usize| f64::from(xs[i]);
    let slope = |i: usize| (y(i + 1) - y(i)) / (at(i + 1) - at(i));
    let last = xs.len() - 1;
    if x <= at(0) {
        let start = if last == 0 { 0.0 } else { start(at(0), y(0), slope(0)) };
        return (start + (y(0) - start) * (x / at(0))).min(y(0));
    }
    if x >= at(last) {
        return y(last)
            + slope_beyond(at(last), y(last), if last == 0 { 0.0 } else { slope(last - 1) }) * (x - at(last));
    }
    let high = xs.partition_point(|&knot| f64::from(knot) < x);
    let (below, above) = (y(high - 1), y(high));
    if x == at(high) { above } else { (below + slope(high - 1) * (x - at(high - 1))).min(below.max(above)) }
}

/// The value of the first segment at zero samples.
fn start(x: f64, y: f64, slope: f64) -> f64 {
    (y - slope.max(0.0) * x).max(0.0)
}

fn slope_beyond(x: f64, y: f64, slope: f64) -> f64 {
    slope.max(y / x)
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    /// The seconds of zero samples, by extrapolation.
    start: f64,
    knots: Knots,
    /// Seconds per sample beyond the last knot.
    beyond: f64,
}

/// (samples, seconds); both ascend, seconds not necessarily strictly. Tens of thousands of curves
/// are built, and most have few knots: these need no allocation.
#[derive(Clone, Debug, PartialEq)]
enum Knots {
    Few([(f64, f64); FEW], usize),
    Many(Vec<(f64, f64)>),
}

const FEW: usize = 8;

impl Knots {
    fn new(knots: impl ExactSizeIterator<Item = (f64, f64)>) -> Knots {
        if knots.len() > FEW {
            return Knots::Many(knots.collect());
        }
        let (mut few, mut count) = ([(0.0, 0.0); FEW], 0);
        for (slot, knot) in few.iter_mut().zip(knots) {
            *slot = knot;
            count += 1;
        }
        Knots::Few(few, count)
    }
}

impl Deref for Knots {
    type Target = [(f64, f64)];

    fn deref(&self) -> &[(f64, f64)] {
        match self {
            Knots::Few(few, count) => &few[..*count],
            Knots::Many(many) => many,
        }
    }
}

impl Curve {
    /// Builds a curve through at least one knot with positive samples and seconds; both must
    /// ascend.
    pub(super) fn new(knots: impl ExactSizeIterator<Item = (f64, f64)>) -> Curve {
        let knots = Knots::new(knots);
        let slope = |i: usize| (knots[i + 1].1 - knots[i].1) / (knots[i + 1].0 - knots[i].0);
        let last = knots.len() - 1;
        let (first_slope, last_slope) = if last == 0 { (f64::INFINITY, 0.0) } else { (slope(0), slope(last - 1)) };
        Curve {
            start: start(knots[0].0, knots[0].1, first_slope),
            beyond: slope_beyond(knots[last].0, knots[last].1, last_slope),
            knots,
        }
    }

    pub(super) fn proportional(seconds_per_sample: f64) -> Curve {
        Curve { start: 0.0, knots: Knots::new([(1.0, seconds_per_sample)].into_iter()), beyond: seconds_per_sample }
    }

    pub(crate) fn seconds(&self, samples: f64) -> f64 {
        let mut from = (0.0, self.start);
        if samples <= 0.0 {
            return 0.0;
        }
        for &knot in self.knots.iter() {
            if samples <= knot.0 {
                let part = (samples - from.0) / (knot.0 - from.0);
                return if samples == knot.0 { knot.1 } else { (from.1 + (knot.1 - from.1) * part).min(knot.1) };
            }
            from = knot;
        }
        from.1 + self.beyond * (samples - from.0)
    }

    /// The number of samples up to `limit` with the least time per sample; of equally good ones the
    /// smallest.
    pub(crate) fn best_up_to(&self, limit: u32) -> u32 {
        let limit = f64::from(limit);
        // Between two knots the time per sample is monotonic.
        let knots =
            || self.knots.iter().take_while(|knot| knot.0 < limit).map(|&(count, seconds)| (count, seconds / count));
        let at_limit = self.seconds(limit) / limit;
        let least = knots().map(|(_, each)| each).fold(at_limit, f64::min);
        knots().find(|&(_, each)| each <= least * AS_GOOD).map_or(limit, |(count, _)| count) as u32
    }

    /// The number of samples in a full micro-batch: `cap`, unless fewer take less time each. No
    /// number below the result takes less time per sample.
    pub(crate) fn at_a_time(&self, cap: u32) -> u32 {
        let limit = f64::from(cap);
        let at_cap = self.seconds(limit) / limit;
        let is_better = |knot: &(f64, f64)| knot.0 < limit && knot.1 < at_cap * knot.0 * (1.0 - 1e-9);
        if self.knots.iter().any(is_better) { self.best_up_to(cap) } else { cap }
    }

    /// The largest number of samples done in `seconds`, including a fraction of a sample.
    pub(crate) fn samples(&self, seconds: f64) -> f64 {
        let mut from = (0.0, self.start);
        if seconds < self.start || seconds.is_nan() {
            return 0.0;
        }
        for &knot in self.knots.iter() {
            if seconds < knot.1 {
                return from.0 + (knot.0 - from.0) * ((seconds - from.1) / (knot.1 - from.1));
            }
            from = knot;
        }
        from.0 + (seconds - from.1) / self.beyond
    }
}

#[cfg(test)]
mod tests {
    use crate::table::{CostPoint, CostTable};
    use proptest::prelude::*;

    fn any_table() -> impl Strategy<Value = CostTable> {
        let point = (1u32..100, 1u32..600, 0u64..1_000_000);
        let point = point.prop_map(|(samples, tokens, micros)| CostPoint { samples, tokens, micros, bytes: 0 });
        prop_oneof![
            4 => prop::collection::vec(point, 1..12).prop_map(|points| CostTable::new(points).unwrap()),
            1 => (1e-3f64..1e6).prop_map(CostTable::proportional),
        ]
    }

    proptest! {
        #[test]
        fn a_curve_agrees_with_its_table(table in any_table(), samples in 1u32..300, tokens in 1u32..900) {
            let (curve, table) = (table.curve(tokens).seconds(f64::from(samples)), table.seconds(samples, tokens));
            prop_assert!((curve - table).abs() <= table * 1e-12, "{curve} and {table}");
        }

        #[test]
        fn samples_done_in_a_time_take_no_longer(table in any_table(), tokens in 1u32..900, part in 0.0f64..3.0) {
            let curve = table.curve(tokens);
            let seconds = part * table.seconds(100, tokens);
            let samples = curve.samples(seconds);
            prop_assert!(samples >= 0.0 && samples.is_finite());
            if samples > 0.0 {
                prop_assert!(curve.seconds(samples) <= seconds * (1.0 + 1e-12) + 1e-15);
            }
            // And it is the largest number: a little more takes longer.
            let more = samples * (1.0 + 1e-9) + 1e-9;
            prop_assert!(curve.seconds(more) >= seconds * (1.0 - 1e-12));
        }

        #[test]
        fn no_smaller_number_takes_less_time_each(table in any_table(), tokens in 1u32..900, cap in 1u32..200) {
            let best = table.curve(tokens).at_a_time(cap);
            prop_assert!(best >= 1 && best <= cap);
            let each = |samples: u32| table.seconds(samples, tokens) / f64::from(samples);
            for fewer in 1..best {
                prop_assert!(each(fewer) >= each(best) * (1.0 - 1e-9), "{fewer} of {best}");
            }
        }
    }

    #[test]
    fn invalid_seconds_are_zero_samples() {
        let curve = CostTable::proportional(10.0).curve(20);
        assert_eq!([f64::NAN, -1.0, 0.0, 2.0].map(|seconds| curve.samples(seconds)), [0.0, 0.0, 0.0, 1.0]);
    }
}
