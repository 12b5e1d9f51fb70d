//! Every optimizer against `torch.optim`, `timm.optim.Lamb` and
//! `transformers.optimization.Adafactor`: twenty steps, with and without weight decay and clipping,
//! and with parameter groups. transformers has no rate of a group with `relative_step`; the oracle
//! multiplies the rate there.

use std::collections::BTreeMap;

use hetseq_optim::{Layout, OptimError, Optimizer, OptimizerConfig, ParameterGroup, ParameterGroups};
use hetseq_optim::{clip_factor, global_norm};
use serde::Deserialize;

const FIXTURE: &str = include_str!("../fixtures/optimizers.json");

/// Single precision rounds each operation by up to 6e-8 of its result. PyTorch fuses some
/// multiplications with additions and uses f64 for the learning rate and f32 for the norm. This
/// crate does none of these, so single steps differ in the last bit, and twenty steps in a few
/// bits.
const RELATIVE: f64 = 1e-6;
/// For values near 0 after cancellation, where a relative bound has no meaning.
const ABSOLUTE: f64 = 1e-7;
const SQUARES: [&str; 3] = ["exp_avg_sq", "square_avg", "acc_delta"];

#[derive(Deserialize)]
struct Fixture {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    title: String,
    seed: u32,
    lr: f32,
    max_norm: Option<f64>,
    shapes: Vec<(String, Vec<usize>)>,
    /// Every `stride`-th element is recorded.
    stride: usize,
    config: OptimizerConfig,
    /// The learning-rate scale of each parameter, and whether it decays.
    groups: Option<Vec<(f32, bool)>>,
    after: BTreeMap<u64, Vec<f32>>,
    state: BTreeMap<String, Vec<f32>>,
}

impl Case {
    fn optimizer(&self, layout: &Layout) -> Result<Optimizer, OptimError> {
        let Some(groups) = &self.groups else { return Optimizer::new(&self.config, layout) };
        assert_eq!(groups.len(), layout.entries().len(), "{}", self.title);
        let names = layout.entries().iter().map(|entry| &entry.name);
        let by_name: BTreeMap<&String, (f32, bool)> = names.zip(groups.iter().copied()).collect();
        let groups = ParameterGroups::new(layout, |entry| {
            let (lr_scale, decays) = by_name[&entry.name];
            ParameterGroup { lr_scale, decays }
        })?;
        Optimizer::with_groups(&self.config, layout, &groups)
    }
}

/// The inputs, the same as `Stream` in `scripts/fixtures/stream.py`; all values are exact in f32.
struct Stream(u32);

impl Stream {
    fn take(&mut self, count: usize) -> Vec<f32> {
        let mut next = |i: usize| {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = (self.0 >> 16) as f32 / 32_768.0 - 1.0;
            value / (1u32 << (i % 8)) as f32
        };
        (0..count).map(&mut next).collect()
    }

    /// One value per element of the layout, parameter by parameter.
    fn fill(&mut self, layout: &Layout) -> Vec<f32> {
        let entries = layout.entries().iter();
        entries.flat_map(|e| self.take(e.range.len())).collect()
    }
}

fn assert_close(found: &[f32], expected: &[f32], stride: usize, what: &str) {
    assert_eq!(found.len().div_ceil(stride), expected.len(), "{what}");
    for (i, (f, e)) in found.iter().step_by(stride).zip(expected).enumerate() {
        let (f, e) = (f64::from(*f), f64::from(*e));
        // Squares do not cancel, so their running means use the relative bound only.
        let is_square = SQUARES.iter().any(|slot| what.contains(slot));
        let absolute = if is_square { 0.0 } else { ABSOLUTE };
        let close = (f - e).abs() <= absolute + RELATIVE * e.abs();
        assert!(close, "{what}, recorded element {i}: {f} is not {e}");
    }
}

#[test]
fn optimizers_equal_their_references() {
    let fixture: Fixture = serde_json::from_str(FIXTURE).unwrap();
    let mut clipped = 0;
    for case in &fixture.cases {
        let layout = Layout::new(case.shapes.clone()).unwrap();
        let mut stream = Stream(case.seed);
        let mut parameters = stream.fill(&layout);
        let mut optimizer = case.optimizer(&layout).unwrap();
        for step in 1..=20 {
            let gradients = stream.fill(&layout);
            let scale = clip_factor(global_norm(&gradients), case.max_norm);
            clipped += usize::from(scale < 1.0);
            let lr = optimizer.relative_rate(step).map_or(case.lr, |rate| rate as f32);
            optimizer.step(&mut parameters, &gradients, scale, lr);
            if let Some(expected) = case.after.get(&step) {
                let what = format!("{}, step {step}", case.title);
                assert_close(&parameters, expected, case.stride, &what);
            }
        }
        assert_eq!(case.after.len(), 3, "{}", case.title);
        let state = optimizer.state();
        assert_eq!(state.len(), case.state.len(), "{}", case.title);
        for (name, found) in state {
            let what = format!("{}, {name}", case.title);
            assert_close(found, &case.state[&name], case.stride, &what);
        }
    }
    assert_eq!(fixture.cases.len(), 39);
    assert_eq!(fixture.cases.iter().filter(|case| case.groups.is_some()).count(), 8);
    // Seven cases clip every step; one clips some of its steps.
    assert!((141..160).contains(&clipped), "{clipped}");
}
