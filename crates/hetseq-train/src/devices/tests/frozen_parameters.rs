//! Frozen parameters on devices: the others have the gradients that they have without them, also if
//! layers are recomputed, and frozen values stay.

use burn::tensor::{Int, Tensor};
use hetseq_models::bert::{BertClassifier, BertConfig, BertInput};
use hetseq_models::loss::cross_entropy_sum;
use hetseq_models::recompute::Tape;
use hetseq_optim::{Optimizer, OptimizerConfig};

use super::*;
use crate::devices::gradients::Accumulator;

/// BERT with three layers and a classifier of samples.
fn untrained(device: &Device) -> BertClassifier {
    let config = BertConfig {
        vocab_size: 50,
        hidden_size: 16,
        num_hidden_layers: 3,
        num_attention_heads: 2,
        intermediate_size: 32,
        max_position_embeddings: 8,
        initializer_range: 0.3,
        ..BertConfig::default()
    };
    BertClassifier::of_samples(&config, 3, device)
}

/// The same with initial parameters, of which some are frozen.
struct Classifier {
    model: BertClassifier,
    device: Device,
    layout: Layout,
    parameters: Vec<f32>,
}

impl Classifier {
    /// Freezes the parameters whose names begin with one of `frozen`. The values do not depend on
    /// it.
    fn new(frozen: &[&str]) -> Self {
        let device = Device::flex().autodiff();
        let model = untrained(&device);
        let is_frozen = |name: &str| frozen.iter().any(|prefix| name.starts_with(prefix));
        let layout = params::layout_of(&model).unwrap().freeze(|entry| is_frozen(&entry.name));
        let parameters = params::initial(&model, &layout, 7);
        Classifier { model: params::load(model, &parameters, &layout, &device), device, layout, parameters }
    }

    /// The gradients by name, then the loss.
    fn gradients(&self, recompute: bool) -> Vec<(String, Vec<f32>)> {
        let ids: Vec<i32> = (0..12).map(|i| 1 + i * 7 % 49).collect();
        let input = BertInput::new(&ids, &[0; 12], &[6, 4], &self.device);
        let labels = Tensor::<1, Int>::from_data([2, 0], &self.device);
        let keys = [Key::root(1), Key::root(2)];
        let tape = Tape::default();
        let logits = self.model.sample_logits(&input, &keys, recompute.then_some(&tape));
        let loss = cross_entropy_sum(logits, labels);
        let mut sums = Accumulator::new(&self.model, 1, &self.device);
        sums.backward(&self.model, tape, &loss);
        let flat = sums.download(&self.layout, Some(loss.inner()), 1, &self.device).unwrap();
        assert_eq!(flat.len(), self.layout.trainable_len() + 1);
        let named = |entry: &hetseq_optim::LayoutEntry| (entry.name.clone(), flat[entry.range.clone()].to_vec());
        let mut named: Vec<_> = self.layout.trainable_entries().iter().map(named).collect();
        named.push(("loss".to_owned(), vec![flat[flat.len() - 1]]));
        named
    }
}

#[test]
fn trainable_parameters_have_the_gradients_of_the_whole_model() {
    let all = Classifier::new(&[]).gradients(false);
    let (embeddings, first) = ("bert.embeddings.", "bert.encoder.layer.0.");
    for frozen in [
        &[embeddings, first][..],
        &[first],
        // Below trainable parameters.
        &["bert.encoder.layer.2.", "classifier."],
        // Parts of a layer.
        &[embeddings, "bert.encoder.layer.0.attention.", "bert.encoder.layer.1.output.LayerNorm.bias"],
        &["bert."],
    ] {
        let part = Classifier::new(frozen);
        assert!(part.layout.trainable_len() < part.layout.len(), "{frozen:?}");
        let expected: Vec<_> = all.iter().filter(|(name, _)| !part.layout.is_frozen(name)).cloned().collect();
        for recompute in [false, true] {
            // Bit for bit, in the same order.
            assert!(part.gradients(recompute) == expected, "{frozen:?}, recompute: {recompute}");
        }
    }
}

#[test]
fn frozen_parameters_are_not_tracked() {
    let part = Classifier::new(&["bert.embeddings.", "bert.encoder.layer.0."]);
    let tracked = |model: &BertClassifier| {
        struct Count(usize);
        impl burn::module::ModuleVisitor for Count {
            fn visit_float<const D: usize>(&mut self, param: &burn::module::Param<Tensor<D>>) {
                self.0 += usize::from(param.val().is_tracked());
            }
        }
        let mut count = Count(0);
        model.visit(&mut count);
        count.0
    };
    let trainable = part.layout.trainable_entries().len();
    assert_eq!(tracked(&part.model), trainable);
    // Also with nothing loaded, or only the trainable parameters.
    let frozen = params::load(untrained(&part.device), &[], &part.layout, &part.device);
    assert_eq!(tracked(&frozen), trainable);
    let trained = &part.parameters[..part.layout.trainable_len()];
    assert_eq!(tracked(&params::load(frozen, trained, &part.layout, &part.device)), trainable);
}

#[test]
fn devices_train_around_frozen_parameters() {
    let task = OpenedTask::new(Toy, String::new());
    let layout = Arc::new(task.compute.layout().unwrap().freeze(|entry| entry.name.starts_with("first.")));
    let mut devices = Devices::start(&task, &layout, &cpus(2), PrecisionPolicy::default(), HANG_TIMEOUT).unwrap();
    let mut parameters = initial(&layout);
    let (before, trainable) = (parameters.to_vec(), layout.trainable_len());
    let mut optimizer = Optimizer::new(&OptimizerConfig::default(), &layout).unwrap();
    let jobs = || vec![vec![job(0)], vec![job(4)]];
    let mut losses = Vec::new();
    // As the probe does: before the first load.
    assert_eq!(gradients(&mut devices, jobs(), 1.0, Key::root(0)).unwrap().flat.len(), trainable + 1);
    devices.load(&parameters).unwrap();
    for _ in 0..20 {
        let sum = gradients(&mut devices, jobs(), 1.0, Key::root(0)).unwrap();
        losses.push(sum.flat[trainable]);
        let values: &mut Vec<f32> = Arc::make_mut(&mut parameters);
        optimizer.step(values, &sum.flat[..trainable], 1.0, 0.01);
        devices.load_trainable(&parameters).unwrap();
    }
    assert!(losses[19] < losses[0] / 2.0, "{losses:?}");
    assert_eq!(parameters[trainable..], before[trainable..]);
    assert_ne!(parameters[..trainable], before[..trainable]);

    // A load of all loads the frozen ones, too.
    let loss = |devices: &mut Devices| gradients(devices, jobs(), 1.0, Key::root(0)).unwrap().flat[trainable];
    let trained = loss(&mut devices);
    let other = Arc::new([&parameters[..trainable], &vec![0.0; layout.len() - trainable]].concat());
    devices.load(&other).unwrap();
    assert_ne!(loss(&mut devices), trained);
}
