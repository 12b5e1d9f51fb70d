//! Parameter groups: each parameter is updated as by an optimizer that has its learning rate for
//! all parameters, and a scale of 0 changes no parameter.

use super::*;
use crate::{LayoutEntry, ParameterGroup};

/// Neighbours with equal and with other scales; no scale is the inverse of another.
pub(super) fn scaled_groups(layout: &Layout) -> ParameterGroups {
    let scale = |entry: &LayoutEntry| match entry.name.as_str() {
        "embed.weight" => 0.3,
        "norm.gamma" | "none" => 0.0,
        "dense.weight" | "dense.bias" => 1.7,
        "temperature" => 0.3,
        _ => 1.0,
    };
    ParameterGroups::new(layout, |entry| {
        // The decay of two parameters is not that of their shapes.
        let decays = decays(entry) != ["dense.bias", "conv.weight"].contains(&entry.name.as_str());
        ParameterGroup { lr_scale: scale(entry), decays }
    })
    .unwrap()
}

/// The parameters and the state after four steps.
fn train_with(
    config: &OptimizerConfig,
    layout: &Layout,
    groups: &ParameterGroups,
    lr: f32,
) -> (Vec<f32>, Vec<(String, Vec<f32>)>) {
    let mut optimizer = Optimizer::with_groups(config, layout, groups).unwrap();
    let mut parameters = noise(layout.len(), 1);
    for update in 0..4 {
        optimizer.step(&mut parameters, &noise(layout.len(), 100 + update), 0.7, lr);
    }
    assert!(optimizer.is_finite());
    (parameters, owned_state(&optimizer))
}

#[test]
fn a_group_is_updated_as_with_its_rate_for_all() {
    let (layout, lr) = (layout(), 0.01f32);
    let groups = scaled_groups(&layout);
    let same_rate = |group: &ParameterGroup| ParameterGroup { lr_scale: 1.0, ..*group };
    let unscaled = groups.as_slice().iter().map(same_rate);
    let decays: BTreeMap<&str, ParameterGroup> =
        layout.entries().iter().map(|entry| entry.name.as_str()).zip(unscaled).collect();
    let unscaled = ParameterGroups::new(&layout, |entry| decays[entry.name.as_str()]).unwrap();
    for config in configs() {
        let (found, state) = train_with(&config, &layout, &groups, lr);
        for scale in [0.0f32, 0.3, 1.0, 1.7] {
            let (expected, expected_state) = train_with(&config, &layout, &unscaled, lr * scale);
            let entries = layout.entries().iter().zip(groups.as_slice());
            for (entry, _) in entries.filter(|(_, group)| group.lr_scale == scale) {
                let at = entry.range.clone();
                assert_eq!(bits(&found[at.clone()]), bits(&expected[at.clone()]), "{config:?}, {}", entry.name);
                // Adafactor's moments of rows and columns have other positions.
                let whole = state.iter().zip(&expected_state).filter(|((_, slot), _)| slot.len() == layout.len());
                for ((name, slot), (_, expected)) in whole {
                    let (slot, expected) = (&slot[at.clone()], &expected[at.clone()]);
                    assert_eq!(bits(slot), bits(expected), "{config:?}, {name} of {}", entry.name);
                }
            }
        }
    }
}

/// The recorded bits of the default groups, from scales and rates whose product is exact.
#[test]
fn an_exact_product_gives_the_bits_of_the_default() {
    let layout = layout();
    for config in configs() {
        let (expected, expected_state) = train_with(&config, &layout, &ParameterGroups::by_shape(&layout), 0.01);
        for (scale, lr) in [(1.0, 0.01), (0.25, 0.04), (8.0, 0.00125)] {
            assert_eq!(lr * scale, 0.01f32);
            let group = |entry: &LayoutEntry| ParameterGroup { lr_scale: scale, decays: decays(entry) };
            let groups = ParameterGroups::new(&layout, group).unwrap();
            let (found, state) = train_with(&config, &layout, &groups, lr);
            assert!(bits(&found) == bits(&expected), "{config:?}, scale {scale}");
            assert!(state == expected_state, "{config:?}, scale {scale}");
        }
    }
}

#[test]
fn a_scale_of_zero_keeps_every_bit() {
    let layout = layout();
    let groups = ParameterGroups::new(&layout, |_| ParameterGroup { lr_scale: 0.0, decays: true }).unwrap();
    for config in configs() {
        let mut optimizer = Optimizer::with_groups(&config, &layout, &groups).unwrap();
        let mut parameters = noise(layout.len(), 1);
        // With a rate of 0, `p - rate * g` is 0 and not -0 for some signs of `g`.
        parameters.iter_mut().step_by(3).for_each(|p| *p = -0.0);
        let before = bits(&parameters);
        train(&mut optimizer, &mut parameters, 0..3);
        assert!(bits(&parameters) == before && optimizer.is_finite(), "{config:?}");
        assert_eq!(optimizer.steps(), 3);
        let moments = owned_state(&optimizer);
        let is_average = |name: &str| config.name == OptimizerName::Adafactor && name == "exp_avg";
        for (name, values) in moments {
            // Adafactor's running mean is one of steps, which are 0.
            assert_eq!(values.iter().any(|value| *value != 0.0), !is_average(&name), "{config:?}, {name}");
        }

        for at in [31_000, 30_050, layout.len() - 1] {
            let mut gradients = noise(layout.len(), 9);
            gradients[at] = f32::INFINITY;
            optimizer.step(&mut parameters, &gradients, 1.0, 0.1);
            assert!(bits(&parameters) == before && !optimizer.is_finite(), "{config:?} at {at}");
        }
    }
}

#[test]
fn groups_decide_what_decays() {
    let shapes = [("w", vec![2, 1]), ("b", vec![2])];
    let layout = Layout::new(shapes.map(|(n, s)| (n.to_owned(), s))).unwrap();
    let only_bias = |entry: &LayoutEntry| ParameterGroup { lr_scale: 1.0, decays: entry.name == "b" };
    let groups = ParameterGroups::new(&layout, only_bias).unwrap();
    for config in configs() {
        let mut parameters = [1.0; 4];
        let mut optimizer = Optimizer::with_groups(&config, &layout, &groups).unwrap();
        optimizer.step(&mut parameters, &[0.0; 4], 1.0, 0.1);
        assert_eq!(parameters[..2], [1.0; 2], "{config:?}");
        assert!(parameters[2..].iter().all(|p| *p < 1.0), "{config:?}");
    }
}

#[test]
fn groups_of_another_layout_are_refused() {
    let other = Layout::new([("w".to_owned(), vec![2])]).unwrap();
    let error = Optimizer::with_groups(&OptimizerConfig::default(), &layout(), &ParameterGroups::by_shape(&other));
    assert_eq!(error.unwrap_err(), OptimError::GroupsOfOtherLayout { groups: 1, parameters: 8 });
}
