//! Frozen parameters: they keep every bit and have no moments, and the others are updated as if they
//! were the whole layout.

use super::*;

#[test]
fn an_optimizer_sees_trainable_parameters_only() {
    let all = layout().freeze(|entry| ["embed.weight", "norm.gamma", "conv.weight"].contains(&entry.name.as_str()));
    let trainable = all.trainable_entries().iter().map(|entry| (entry.name.clone(), entry.shape.clone()));
    let trainable = Layout::new(trainable).unwrap();
    assert_eq!((all.trainable_len(), all.entries().len()), (trainable.len(), 8));
    for config in configs() {
        let mut expected = noise(trainable.len(), 1);
        let mut reference = Optimizer::new(&config, &trainable).unwrap();
        let mut parameters = [expected.clone(), noise(all.len() - trainable.len(), 2)].concat();
        // A frozen value is never read, either.
        parameters[all.len() - 1] = f32::NAN;
        let frozen = bits(&parameters[trainable.len()..]);
        let mut optimizer = Optimizer::new(&config, &all).unwrap();
        for update in 0..4 {
            let gradients = noise(trainable.len(), 100 + update);
            reference.step(&mut expected, &gradients, 0.7, 0.01);
            optimizer.step(&mut parameters, &gradients, 0.7, 0.01);
        }
        assert!(optimizer.is_finite(), "{config:?}");
        assert_eq!(bits(&parameters[..trainable.len()]), bits(&expected), "{config:?}");
        assert_eq!(bits(&parameters[trainable.len()..]), frozen, "{config:?}");
        assert!(owned_state(&optimizer) == owned_state(&reference), "{config:?}");
        assert!(optimizer.state().iter().all(|(_, slot)| slot.len() <= trainable.len()), "{config:?}");
    }
}

#[test]
fn state_of_other_frozen_parameters_is_refused() {
    let all = layout();
    let frozen = all.clone().freeze(|entry| entry.name == "embed.weight");
    let config = OptimizerConfig::default();
    let mut saved = Optimizer::new(&config, &all).unwrap();
    saved.begin_step();
    let error = Optimizer::new(&config, &frozen).unwrap().restore(owned_state(&saved), saved.scalars()).unwrap_err();
    let expected = OptimError::StateLength { name: "exp_avg".into(), expected: all.len() - 30_000, found: all.len() };
    assert_eq!(error, expected);
}
