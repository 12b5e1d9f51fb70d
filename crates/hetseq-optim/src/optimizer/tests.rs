//! Properties of all optimizers: threads, ranges and resuming change no bit, and mistakes are
//! named. `tests/golden` compares the numbers with PyTorch's.

mod frozen;
mod scales;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::decays;

/// Every update rule, with every option that uses another code path.
fn configs() -> Vec<OptimizerConfig> {
    let base = OptimizerConfig { weight_decay: 0.01, ..OptimizerConfig::default() };
    let named = |name| OptimizerConfig { name, ..base.clone() };
    let sgd = named(OptimizerName::Sgd);
    vec![
        OptimizerConfig { momentum: 0.0, ..sgd.clone() },
        OptimizerConfig { nesterov: true, ..sgd.clone() },
        sgd,
        named(OptimizerName::Adam),
        named(OptimizerName::AdamW),
        named(OptimizerName::Adadelta),
        named(OptimizerName::Lamb),
        OptimizerConfig { always_adapt: Some(true), trust_clip: Some(true), ..named(OptimizerName::Lamb) },
        named(OptimizerName::Adafactor),
        OptimizerConfig { beta1: Some(0.9), scale_parameter: Some(false), ..named(OptimizerName::Adafactor) },
    ]
}

/// The first of `configs` that needs whole parameters.
const FIRST_WITH_WHOLE_PARAMETERS: usize = 6;

/// Several chunks long, with parameter boundaries inside chunks and chunk boundaries inside
/// parameters.
fn layout() -> Layout {
    let shapes: [(&str, &[usize]); 8] = [
        ("embed.weight", &[300, 100]),
        ("norm.gamma", &[100]),
        ("none", &[0]),
        ("dense.weight", &[500, 100]),
        ("dense.bias", &[501]),
        ("conv.weight", &[33, 40, 3, 3]),
        ("temperature", &[]),
        ("out.weight", &[9, 3700]),
    ];
    Layout::new(shapes.map(|(n, s)| (n.to_owned(), s.to_vec()))).unwrap()
}

fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn owned_state(optimizer: &Optimizer) -> Vec<(String, Vec<f32>)> {
    let state = optimizer.state().into_iter();
    state.map(|(name, s)| (name, s.to_vec())).collect()
}

/// Applies some steps to the parameters.
fn train(optimizer: &mut Optimizer, parameters: &mut [f32], updates: Range<u32>) {
    for update in updates {
        let gradients = noise(parameters.len(), 100 + update);
        optimizer.step(parameters, &gradients, 0.7, 0.01);
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let layout = layout();
    for config in configs() {
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut optimizer = Optimizer::new(&config, &layout).unwrap();
                let mut parameters = noise(layout.len(), 1);
                train(&mut optimizer, &mut parameters, 0..4);
                let moments = owned_state(&optimizer);
                (bits(&parameters), moments)
            })
        };
        let one = run(1);
        for threads in [2, 3, 7] {
            assert!(run(threads) == one, "{config:?} on {threads} threads");
        }
    }
}

/// All machines of a run must give the same bits, with any instruction set. Recorded on x86-64.
#[test]
fn the_bits_match_the_recorded_ones() {
    let layout = layout();
    let recorded: [u64; 10] = [
        0xcade_eabe_6c7b_44b6,
        0x8bdc_0cc6_171d_480f,
        0x8ccf_eea4_ac81_6f9b,
        0x63a9_686e_dfc8_a54c,
        0x16f8_6e36_6ded_5c93,
        0x7a4e_db67_af4e_3a55,
        0xa259_d473_f178_6409,
        0xcff7_fa24_9857_167f,
        0xe02f_470a_d3f1_e9fb,
        0x93b3_1ba3_9f15_0ea9,
    ];
    let hash = |config| {
        let mut optimizer = Optimizer::new(config, &layout).unwrap();
        let mut parameters = noise(layout.len(), 1);
        train(&mut optimizer, &mut parameters, 0..4);
        let bytes: Vec<u8> = parameters.iter().flat_map(|value| value.to_le_bytes()).collect();
        u64::from_le_bytes(*blake3::hash(&bytes).as_bytes().first_chunk().unwrap())
    };
    let found: Vec<u64> = configs().iter().map(hash).collect();
    assert_eq!(found, recorded, "{found:#018x?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_split_into_ranges_equals_one_step(
        which in 0..configs().len(),
        is_scaled in any::<bool>(),
        mut cuts in prop::collection::vec(0usize..=layout().len(), 0..6),
    ) {
        let (config, layout) = (&configs()[which], layout());
        let len = layout.len();
        if which >= FIRST_WITH_WHOLE_PARAMETERS {
            let starts: Vec<usize> = layout.entries().iter().map(|entry| entry.range.start).collect();
            cuts.iter_mut().for_each(|cut| *cut = starts[*cut % starts.len()]);
        }
        cuts.extend([0, len]);
        cuts.sort_unstable();
        let groups = if is_scaled { scales::scaled_groups(&layout) } else { ParameterGroups::by_shape(&layout) };
        let mut whole = Optimizer::with_groups(config, &layout, &groups).unwrap();
        let mut split = Optimizer::with_groups(config, &layout, &groups).unwrap();
        let mut expected = noise(len, 1);
        let mut found = expected.clone();
        for update in 0..2 {
            let gradients = noise(len, 100 + update);
            whole.step(&mut expected, &gradients, 0.7, 0.01);
            split.begin_step();
            for cut in cuts.windows(2).rev() {
                let range = cut[0]..cut[1];
                let part = &mut found[range.clone()];
                split.step_range(range.clone(), part, &gradients[range], 0.7, 0.01);
            }
        }
        prop_assert_eq!(bits(&found), bits(&expected));
        prop_assert_eq!(owned_state(&split), owned_state(&whole));
    }
}

#[test]
fn a_resumed_run_continues_bit_for_bit() {
    let layout = layout();
    for config in configs() {
        let mut uninterrupted = Optimizer::new(&config, &layout).unwrap();
        let mut expected = noise(layout.len(), 1);
        train(&mut uninterrupted, &mut expected, 0..3);

        let mut found = expected.clone();
        let mut resumed = Optimizer::new(&config, &layout).unwrap();
        let mut slots = owned_state(&uninterrupted);
        slots.reverse();
        resumed.restore(slots, uninterrupted.scalars()).unwrap();

        train(&mut uninterrupted, &mut expected, 3..6);
        train(&mut resumed, &mut found, 3..6);
        assert_eq!(bits(&found), bits(&expected), "{config:?}");
        assert_eq!(resumed.steps(), 6);
        assert_eq!(resumed.scalars(), uninterrupted.scalars());
    }
}

#[test]
fn a_state_before_the_first_step_restores() {
    let layout = layout();
    for config in configs() {
        let fresh = Optimizer::new(&config, &layout).unwrap();
        let mut other = Optimizer::new(&config, &layout).unwrap();
        other.restore(owned_state(&fresh), fresh.scalars()).unwrap();
        assert_eq!(other.steps(), 0);
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused_and_changes_nothing() {
    let layout = Layout::new([("w".to_owned(), vec![2, 2])]).unwrap();
    let mut adam = Optimizer::new(&OptimizerConfig::default(), &layout).unwrap();
    adam.step(&mut [1.0; 4], &[1.0; 4], 1.0, 0.1);
    let (slots, scalars) = (owned_state(&adam), adam.scalars());

    let slot = |name: &str, len| (name.to_owned(), vec![9.0; len]);
    let missing = adam.restore(vec![slot("exp_avg", 4)], scalars.clone());
    assert!(matches!(missing, Err(OptimError::MissingState { name, .. }) if name == "exp_avg_sq"));
    let short = adam.restore(vec![slot("exp_avg", 4), slot("exp_avg_sq", 3)], scalars.clone());
    assert_eq!(short, Err(OptimError::StateLength { name: "exp_avg_sq".into(), expected: 4, found: 3 }));
    let twice = adam.restore(vec![slot("exp_avg", 4), slot("exp_avg", 4)], scalars.clone());
    assert!(matches!(twice, Err(OptimError::DuplicateState { .. })));
    let foreign = adam.restore(vec![slot("momentum_buffer", 4)], scalars.clone());
    let message = foreign.unwrap_err().to_string();
    assert!(["momentum_buffer", "adamw", "exp_avg, exp_avg_sq"].iter().all(|w| message.contains(w)), "{message}");

    for (name, value) in [
        ("step", 1.5),
        ("step", -1.0),
        ("step", f64::NAN),
        ("step", 0.0), // contradicts the powers
        ("beta1_power", 1.0),
        ("beta2_power", f64::NAN),
    ] {
        let mut bad = scalars.clone();
        bad.insert(name.into(), value);
        let error = adam.restore(slots.clone(), bad).unwrap_err();
        assert!(matches!(error, OptimError::StateScalar { .. }), "{error}");
    }
    let mut unknown = scalars.clone();
    unknown.insert("loss_scale".into(), 1.0);
    assert!(adam.restore(slots.clone(), unknown).is_err());
    assert!(adam.restore(slots.clone(), BTreeMap::new()).is_err());

    assert_eq!(owned_state(&adam), slots);
    assert_eq!(adam.scalars(), scalars);
}

#[test]
fn a_change_of_optimizer_is_refused() {
    let layout = layout();
    let [plain, _, momentum, adam, _, adadelta, _, _, adafactor, averaged] = configs().try_into().unwrap();
    for (from, to) in [
        (&adam, &momentum),
        (&momentum, &adam),
        (&momentum, &plain),
        (&plain, &momentum),
        (&adam, &adadelta),
        (&adam, &adafactor),
        (&adafactor, &averaged),
        (&averaged, &adafactor),
    ] {
        let mut saved = Optimizer::new(from, &layout).unwrap();
        train(&mut saved, &mut noise(layout.len(), 1), 0..1);
        let mut other = Optimizer::new(to, &layout).unwrap();
        let result = other.restore(owned_state(&saved), saved.scalars());
        assert!(result.is_err(), "{from:?} to {to:?}");
    }
}

#[test]
fn only_weights_are_decayed() {
    let shapes = [("w", vec![2, 1]), ("b", vec![2])];
    let layout = Layout::new(shapes.map(|(n, s)| (n.to_owned(), s))).unwrap();
    for config in configs() {
        let mut parameters = [1.0; 4];
        let mut optimizer = Optimizer::new(&config, &layout).unwrap();
        optimizer.step(&mut parameters, &[0.0; 4], 1.0, 0.1);
        assert!(parameters[..2].iter().all(|p| *p < 1.0), "{config:?}");
        assert_eq!(parameters[2..], [1.0; 2], "{config:?}");
    }
}

#[test]
fn adafactor_stores_rows_and_columns() {
    let layout = layout();
    let config = OptimizerConfig { name: OptimizerName::Adafactor, ..OptimizerConfig::default() };
    let optimizer = Optimizer::new(&config, &layout).unwrap();
    let lengths: Vec<(String, usize)> = optimizer.state().into_iter().map(|(name, s)| (name, s.len())).collect();
    let expected = [
        ("exp_avg_sq_row", 300 + 500 + 33 * 40 * 3 + 9),
        ("exp_avg_sq_col", 100 + 100 + 33 * 40 * 3 + 3700),
        ("exp_avg_sq", 100 + 501 + 1),
    ];
    assert_eq!(lengths, expected.map(|(name, length)| (name.to_owned(), length)));
}

#[test]
fn adafactor_computes_its_rate_unless_disabled() {
    let layout = Layout::new([("w".to_owned(), vec![1])]).unwrap();
    let rate = |text: &str, step| {
        let config: OptimizerConfig = toml::from_str(text).unwrap();
        Optimizer::new(&config, &layout).unwrap().relative_rate(step)
    };
    assert_eq!(rate("name = 'adafactor'", 1), Some(0.01));
    assert_eq!(rate("name = 'adafactor'", 40_000), Some(1.0 / 200.0));
    assert_eq!(rate("name = 'adafactor'\nwarmup_init = true", 7), Some(7.0 * 1e-6));
    assert_eq!(rate("name = 'adafactor'\nrelative_step = false", 1), None);
    assert_eq!(rate("name = 'adam'", 1), None);
}

#[test]
fn long_runs_keep_adam_finite() {
    // The powers underflow; the bias corrections must become exactly 1.
    let layout = Layout::new([("w".to_owned(), vec![1, 1])]).unwrap();
    let config = OptimizerConfig { betas: [0.5, 0.9], ..OptimizerConfig::default() };
    let mut optimizer = Optimizer::new(&config, &layout).unwrap();
    let mut parameters = [0.0];
    for _ in 0..10_000 {
        optimizer.step(&mut parameters, &[1.0], 1.0, 1e-3);
    }
    assert_eq!(1.0 - optimizer.scalars()["beta2_power"], 1.0);
    assert!((parameters[0] + 10.0).abs() < 1e-2, "{parameters:?}");
}

#[test]
fn an_empty_layout_can_be_stepped() {
    let layout = Layout::new([]).unwrap();
    let mut optimizer = Optimizer::new(&OptimizerConfig::default(), &layout).unwrap();
    optimizer.step(&mut [], &[], 1.0, 0.1);
    assert_eq!(optimizer.steps(), 1);
}

#[test]
#[should_panic(expected = "gradients for 0..4")]
fn a_buffer_of_the_wrong_length_panics() {
    let layout = Layout::new([("w".to_owned(), vec![4])]).unwrap();
    let mut optimizer = Optimizer::new(&OptimizerConfig::default(), &layout).unwrap();
    optimizer.step(&mut [0.0; 4], &[0.0; 3], 1.0, 0.1);
}

#[test]
fn values_that_are_not_finite_are_reported() {
    let layout = layout();
    for config in configs() {
        // In a matrix, in a vector, and at the end.
        for at in [31_000, 30_050, layout.len() - 1] {
            let mut optimizer = Optimizer::new(&config, &layout).unwrap();
            let mut parameters = noise(layout.len(), 1);
            train(&mut optimizer, &mut parameters, 0..2);
            assert!(optimizer.is_finite(), "{config:?}");
            let mut gradients = noise(layout.len(), 9);
            // Its square, or its product with the rate, overflows f32.
            gradients[at] = 3e38;
            optimizer.step(&mut parameters, &gradients, 1.0, 1e3);
            let slots = optimizer.state();
            let is_finite =
                slots.iter().map(|(_, values)| *values).chain([&parameters[..]]).all(crate::flat::are_finite);
            assert!(!is_finite && !optimizer.is_finite(), "{config:?} at {at}");
        }
    }
}
