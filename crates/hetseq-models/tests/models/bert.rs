//! BERT against transformers' `BertForPreTraining`, recorded by `scripts/fixtures/bert.py`, and
//! against itself in different micro-batches.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::Device;
use hetseq_models::bert::{Bert, BertConfig, BertInput, Labelled};
use hetseq_models::recompute::Tape;
use hetseq_models::{Init, Network};
use hetseq_random::Key;
use safetensors::SafeTensors;
use serde::Deserialize;

use crate::parameters::{add_gradients, assert_close, fill, names, values};
use crate::recorded::{tensor, with_changes};
use crate::stream::Stream;

const LENGTHS: [usize; 3] = [12, 7, 9];
const POSITIONS: usize = 12;
/// Row and column.
const MASKED: [(usize, usize); 5] = [(0, 1), (0, 5), (1, 1), (1, 5), (2, 6)];
const FOLLOWS: [i32; 3] = [0, 1, 1];
/// Vocabulary and width of the model whose initialisation was recorded.
const WIDE: (usize, usize) = (5000, 128);

#[derive(Deserialize)]
struct Recorded {
    config: serde_json::Value,
    names: Vec<(String, Vec<usize>)>,
    starts: BTreeMap<String, String>,
    losses: BTreeMap<String, [f64; 2]>,
}

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("../fixtures/bert.json")).unwrap()
}

/// The recorded config with `changes`.
fn config(changes: &[(&str, serde_json::Value)]) -> BertConfig {
    BertConfig::from_json(&with_changes(recorded().config, changes)).unwrap()
}

/// The model and all data.
struct Case {
    model: Bert,
    device: Device,
    tokens: Vec<i32>,
    labels: Vec<i32>,
}

impl Case {
    fn new(config: &BertConfig) -> Self {
        let device = Device::flex().autodiff();
        let mut stream = Stream(11);
        let tokens = stream.bytes(LENGTHS.len() * POSITIONS);
        let tokens = tokens.into_iter().map(|byte| 1 + i32::from(byte) % (config.vocab_size as i32 - 1)).collect();
        let labels = stream.bytes(MASKED.len());
        let labels = labels.into_iter().map(|byte| i32::from(byte) % config.vocab_size as i32).collect();
        let model = fill(Bert::new(config, &device), &device, |name, shape| stream.parameter(name, shape));
        Case { model, device, tokens, labels }
    }

    /// A micro-batch of these samples, padded to `positions`.
    fn batch(&self, samples: Range<usize>, positions: usize) -> (BertInput, Labelled, Labelled) {
        let (mut tokens, mut segments) = (Vec::new(), Vec::new());
        for sample in samples.clone() {
            for column in 0..positions {
                let is_real = column < LENGTHS[sample];
                tokens.push(if is_real { self.tokens[sample * POSITIONS + column] } else { 0 });
                segments.push(i32::from(is_real && column >= LENGTHS[sample] / 2));
            }
        }
        let input = BertInput::new(&tokens, &segments, &LENGTHS[samples.clone()], &self.device);
        let masked = MASKED.iter().zip(&self.labels).filter(|((row, _), _)| samples.contains(row));
        let index = |row: usize, column: usize| ((row - samples.start) * positions + column) as i32;
        let (at, labels): (Vec<i32>, Vec<i32>) = masked.map(|((row, column), l)| (index(*row, *column), *l)).unzip();
        let rows: Vec<i32> = (0..samples.len() as i32).collect();
        let sentences = Labelled::new(&rows, &FOLLOWS[samples], &self.device);
        (input, Labelled::new(&at, &labels, &self.device), sentences)
    }

    /// Loss sums and gradients of the mean losses over these micro-batches (samples and padded
    /// length).
    fn train(&self, batches: &[(Range<usize>, usize)], keys: &[Key]) -> ([f64; 2], BTreeMap<String, Vec<f32>>) {
        self.train_with(batches, keys, || None)
    }

    /// `tape` is called once per micro-batch.
    fn train_with(
        &self,
        batches: &[(Range<usize>, usize)],
        keys: &[Key],
        tape: impl Fn() -> Option<Tape>,
    ) -> ([f64; 2], BTreeMap<String, Vec<f32>>) {
        let (mut losses, mut gradients) = ([0.0; 2], BTreeMap::new());
        for (samples, positions) in batches {
            let (input, words, sentences) = self.batch(samples.clone(), *positions);
            let keys = if keys.is_empty() { keys } else { &keys[samples.clone()] };
            let tape = tape();
            let [words, sentences] =
                self.model.predict(&input, &words, &sentences, keys, tape.as_ref()).map(|prediction| prediction.loss);
            losses[0] += f64::from(values(words.clone())[0]);
            losses[1] += f64::from(values(sentences.clone())[0]);
            let loss = words / MASKED.len() as f32 + sentences / LENGTHS.len() as f32;
            tape.unwrap_or_default().backward(&loss, |pass| add_gradients(&self.model, pass, &mut gradients));
        }
        (losses, gradients)
    }
}

const ALL: (Range<usize>, usize) = (0..3, POSITIONS);

/// Each sample alone, without padding.
fn alone() -> [(Range<usize>, usize); 3] {
    [0, 1, 2].map(|sample| (sample..sample + 1, LENGTHS[sample]))
}

#[test]
fn values_and_gradients_match_transformers() {
    let tensors = SafeTensors::deserialize(include_bytes!("../fixtures/bert.safetensors")).unwrap();
    let expected = |name: &str| tensor(&tensors, name);
    let case = Case::new(&config(&[]));
    let hidden = case.model.hidden(&case.batch(ALL.0, ALL.1).0, &[], None);
    let pooled = values(case.model.pooled(hidden.clone()));
    // Padding has hidden states too, equal to those of transformers, which masks only the keys.
    for (ours, theirs) in [(values(hidden), expected("hidden")), (pooled, expected("pooled"))] {
        assert_eq!(ours.len(), theirs.len());
        assert!(ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-5));
    }
    let recorded = recorded();
    let theirs = recorded.names.iter().map(|(name, _)| (name.clone(), expected(name))).collect();
    // A different split with less padding gives the same result.
    for batches in [&[ALL][..], &alone()] {
        let (losses, gradients) = case.train(batches, &[]);
        for (ours, theirs) in losses.iter().zip(recorded.losses["gelu"]) {
            assert!((ours - theirs).abs() < 1e-5, "{ours} and {theirs}");
        }
        assert_close(&gradients, &theirs, 1e-5);
    }
}

#[test]
fn activations_match_transformers() {
    let recorded = recorded();
    assert_eq!(recorded.losses.len(), 5);
    for (name, theirs) in &recorded.losses {
        let case = Case::new(&config(&[("hidden_act", name.as_str().into())]));
        let (ours, _) = case.train(&[ALL], &[]);
        assert!(ours.iter().zip(theirs).all(|(a, b)| (a - b).abs() < 1e-5), "{name}: {ours:?} and {theirs:?}");
    }
}

#[test]
fn names_shapes_and_order_match_transformers() {
    assert_eq!(names(&Bert::new(&config(&[]), &Device::flex())), recorded().names);
}

#[test]
fn initialisation_matches_transformers() {
    let config = config(&[("vocab_size", WIDE.0.into()), ("hidden_size", WIDE.1.into())]);
    let model = Bert::new(&config, &Device::flex());
    let starts = recorded().starts;
    for (name, shape) in names(&model) {
        let start = match model.init(&name, &shape) {
            Init::Constant(value) => value.to_string(),
            Init::Normal { std } | Init::NormalExceptRow { std, .. } => format!("normal {std:.2}"),
            Init::Uniform { .. } => "uniform".to_owned(),
        };
        assert_eq!(start, starts[&name], "{name}");
    }
    let mut words = vec![f32::NAN; WIDE.0 * WIDE.1];
    model.init("bert.embeddings.word_embeddings.weight", &[WIDE.0, WIDE.1]).fill(Key::root(1), &mut words);
    let (padding, others) = words.split_at(WIDE.1);
    assert!(padding.iter().all(|&x| x == 0.0));
    assert!(others.iter().all(|&x| x != 0.0));
}

#[test]
fn dropout_does_not_depend_on_the_micro_batch() {
    let case = Case::new(&config(&[("hidden_dropout_prob", 0.3.into()), ("attention_probs_dropout_prob", 0.4.into())]));
    let keys: Vec<Key> = (0..3).map(|sample| Key::root(5).index(sample)).collect();
    let (losses, gradients) = case.train(&[ALL], &keys);
    let (others, other_gradients) = case.train(&alone(), &keys);
    assert!(losses.iter().zip(others).all(|(a, b)| (a - b).abs() < 1e-5), "{losses:?} and {others:?}");
    assert_close(&gradients, &other_gradients, 1e-5);

    // Each rate and the key have an effect.
    let hidden = |case: &Case, keys: &[Key]| values(case.model.hidden(&case.batch(1..2, 7).0, keys, None));
    let (without, with) = (hidden(&case, &[]), hidden(&case, &keys[1..2]));
    assert_ne!(with, without);
    assert_ne!(with, hidden(&case, &keys[2..3]));
    for (key, zero) in [("hidden_dropout_prob", 0.0), ("attention_probs_dropout_prob", 0.0)] {
        let other = Case::new(&config(&[(key, zero.into())]));
        assert_ne!(hidden(&other, &keys[1..2]), without, "{key}");
    }
}

#[test]
fn recomputation_is_bit_identical() {
    let dropout = [("hidden_dropout_prob", 0.3.into()), ("attention_probs_dropout_prob", 0.4.into())];
    let case = Case::new(&config(&dropout));
    let keys: Vec<Key> = (0..3).map(|sample| Key::root(5).index(sample)).collect();
    let recomputed = |batches| case.train_with(batches, &keys, || Some(Tape::default()));
    assert!(recomputed(&[ALL]) == case.train(&[ALL], &keys));
    // Word embeddings are used twice, and the sum over micro-batches adds both uses separately.
    assert_close(&recomputed(&alone()).1, &case.train(&alone(), &keys).1, 1e-6);
}

#[test]
fn no_labels_give_no_loss() {
    let case = Case::new(&config(&[]));
    let (input, words, sentences) = case.batch(0..2, POSITIONS);
    let nothing = Labelled::new(&[], &[], &case.device);
    let [no_words, predicted] = case.model.predict(&input, &nothing, &sentences, &[], None);
    assert_eq!((values(no_words.loss.clone()), no_words.logits.is_none()), (vec![0.0], true));
    assert_eq!(values(no_words.correct(&nothing)), [0.0]);
    assert_eq!(predicted.logits.as_ref().unwrap().dims(), [2, 2]);
    // The losses of both sentences add up.
    let second = Labelled::new(&[1], &[FOLLOWS[1]], &case.device);
    let first = Labelled::new(&[0], &[FOLLOWS[0]], &case.device);
    let loss = |labels: &Labelled| values(case.model.predict(&input, &words, labels, &[], None)[1].loss.clone())[0];
    assert!((loss(&first) + loss(&second) - values(predicted.loss)[0]).abs() < 1e-5);
    // The sum of the losses has gradients although one term is constant.
    let mut gradients = BTreeMap::new();
    let [words, sentences] = case.model.predict(&input, &words, &nothing, &[], None);
    add_gradients(&case.model, &(words.loss + sentences.loss).backward(), &mut gradients);
    assert!(gradients["cls.predictions.bias"].iter().any(|&x| x != 0.0));
    assert!(gradients["bert.pooler.dense.weight"].iter().all(|&x| x == 0.0));
}

#[test]
fn correct_predictions_are_counted() {
    let case = Case::new(&config(&[]));
    let (input, words, sentences) = case.batch(0..3, POSITIONS);
    let [prediction, _] = case.model.predict(&input, &words, &sentences, &[], None);
    let best: Vec<i32> =
        values(prediction.logits.clone().unwrap().argmax(1).float()).iter().map(|&x| x as i32).collect();
    let mut labels = best.clone();
    labels[1] = (labels[1] + 1) % 50;
    assert_eq!(values(prediction.correct(&Labelled::new(&[0, 1, 2, 3, 4], &labels, &case.device))), [4.0]);
}
