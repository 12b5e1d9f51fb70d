//! Drift: what devices were seen to need against what their tables predict.

/// One device's factor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Drift {
    pub(crate) factor: f64,
}

impl Drift {
    pub(crate) fn new() -> Drift {
        Drift { factor: 1.0 }
    }

    pub(crate) fn observe(&mut self, base_s: f64, micros: u64) {
        if base_s > 0.0 {
            let measured = micros.max(1) as f64 * 1e-6 / base_s;
            self.factor += (measured - self.factor) * 0.25;
        }
    }
}
