//! The translation model against transformers' `MarianMTModel` and its `generate`, recorded by
//! `scripts/fixtures/transformer.py`, and against itself: in different micro-batches, step by step
//! instead of at once, and one sentence at a time.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{Device, Int, Tensor};
use hetseq_kernels::top_k_of_rows;
use hetseq_models::beam::{BeamModel, BeamSettings, Hypothesis, search};
use hetseq_models::loss::smoothed_cross_entropy_sum;
use hetseq_models::transformer::{Decoding, Transformer, TransformerConfig, TransformerInput};
use hetseq_random::Key;
use safetensors::SafeTensors;
use serde::Deserialize;

use crate::parameters::{add_gradients, assert_close, fill, names, values};
use crate::recorded::{tensor, with_changes};
use crate::stream::Stream;

const SOURCE: [usize; 3] = [9, 5, 7];
const TARGET: [usize; 3] = [6, 8, 3];
const WORDS: i32 = 40;
const PAD: i32 = 39;
const END: i32 = 0;
const SMOOTHING: f32 = 0.1;
/// Maximum tokens, without the end.
const MAX_TOKENS: usize = 20;

#[derive(Deserialize)]
struct Recorded {
    config: serde_json::Value,
    names: BTreeMap<String, Vec<usize>>,
    losses: BTreeMap<String, f64>,
    separate: f64,
    found: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    beam: usize,
    length_penalty: f64,
    best: Vec<(Vec<u32>, Option<f64>)>,
}

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("../fixtures/transformer.json")).unwrap()
}

/// The recorded config with `changes`.
fn config(changes: &[(&str, serde_json::Value)]) -> TransformerConfig {
    TransformerConfig::from_json(&with_changes(recorded().config, changes)).unwrap()
}

/// Filled in order of the names, with the output bias last, like the script.
fn model(config: &TransformerConfig, stream: &mut Stream, device: &Device, end_bias: f32) -> Transformer {
    let model = Transformer::new(config, device);
    let mut shapes: Vec<(String, Vec<usize>)> = names(&model);
    shapes.sort_by_key(|(name, _)| (name == "final_logits_bias", name.clone()));
    let fill_one = |(name, shape): (String, Vec<usize>)| {
        let mut values = stream.parameter(&name, &shape);
        if name == "final_logits_bias" {
            values[END as usize] += end_bias;
        }
        (name, values)
    };
    let values: BTreeMap<String, Vec<f32>> = shapes.into_iter().map(fill_one).collect();
    fill(model, device, |name, _| values[name].clone())
}

/// Token rows of these lengths.
fn rows(stream: &mut Stream, lengths: &[usize]) -> Vec<Vec<i32>> {
    let row =
        |&length: &usize| stream.bytes(length).into_iter().map(|byte| 1 + i32::from(byte) % (WORDS - 2)).collect();
    lengths.iter().map(row).collect()
}

fn padded(rows: &[Vec<i32>], positions: usize, device: &Device) -> TransformerInput {
    let pad = |row: &Vec<i32>| {
        let padding = std::iter::repeat_n(PAD, positions - row.len());
        row.iter().copied().chain(padding).collect::<Vec<i32>>()
    };
    let ids: Vec<i32> = rows.iter().flat_map(pad).collect();
    TransformerInput::new(&ids, &rows.iter().map(Vec::len).collect::<Vec<_>>(), device)
}

struct Case {
    model: Transformer,
    device: Device,
    source: Vec<Vec<i32>>,
    target: Vec<Vec<i32>>,
}

impl Case {
    fn new(config: &TransformerConfig) -> Self {
        let (device, mut stream) = (Device::flex().autodiff(), Stream(11));
        let model = model(config, &mut stream, &device, 0.0);
        let (source, target) = (rows(&mut stream, &SOURCE), rows(&mut stream, &TARGET));
        Case { model, device, source, target }
    }

    /// Logits and labels of the next tokens in these samples, padded by `more` extra positions.
    fn logits(&self, samples: Range<usize>, more: usize, keys: &[Key]) -> (Tensor<2>, Vec<i32>) {
        let (source, target) = (&self.source[samples.clone()], &self.target[samples.clone()]);
        let inputs: Vec<Vec<i32>> = target.iter().map(|row| [&[PAD], &row[..row.len() - 1]].concat()).collect();
        let longest = |rows: &[Vec<i32>]| rows.iter().map(Vec::len).max().unwrap() + more;
        let positions = longest(target);
        let source = padded(source, longest(source), &self.device);
        let hidden = self.model.hidden(&source, &padded(&inputs, positions, &self.device), keys);
        let indices =
            target.iter().enumerate().flat_map(|(row, ids)| (0..ids.len()).map(move |at| row * positions + at));
        let indices: Vec<i32> = indices.map(|at| at as i32).collect();
        let at = Tensor::<1, Int>::from_data(&indices[..], &self.device);
        (self.model.logits_at(hidden, at), target.concat())
    }

    /// The loss sum and the gradients of the mean loss over these micro-batches.
    fn train(&self, batches: &[(Range<usize>, usize)], keys: &[Key]) -> (f64, BTreeMap<String, Vec<f32>>) {
        let (mut sum, mut gradients) = (0.0, BTreeMap::new());
        for (samples, more) in batches {
            let keys = if keys.is_empty() { keys } else { &keys[samples.clone()] };
            let (logits, labels) = self.logits(samples.clone(), *more, keys);
            let labels = Tensor::<1, Int>::from_data(&labels[..], &self.device);
            let loss = smoothed_cross_entropy_sum(logits, labels, SMOOTHING);
            sum += f64::from(values(loss.clone())[0]);
            let pass = (loss / TARGET.iter().sum::<usize>() as f32).backward();
            add_gradients(&self.model, &pass, &mut gradients);
        }
        (sum, gradients)
    }
}

const ALL: (Range<usize>, usize) = (0..3, 0);

/// Each sample alone, one of them with unnecessary padding.
fn alone() -> [(Range<usize>, usize); 3] {
    [(0..1, 0), (1..2, 3), (2..3, 0)]
}

#[test]
fn values_and_gradients_match_transformers() {
    let tensors = SafeTensors::deserialize(include_bytes!("../fixtures/transformer.safetensors")).unwrap();
    let expected = |name: &str| tensor(&tensors, name);
    let case = Case::new(&config(&[]));
    let (ours, theirs) = (values(case.logits(0..3, 0, &[]).0), expected("logits"));
    assert_eq!(ours.len(), theirs.len());
    assert!(ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-5));
    let recorded = recorded();
    let theirs = recorded.names.keys().map(|name| (name.clone(), expected(name))).collect();
    // A different split with other padding gives the same result.
    for batches in [&[ALL][..], &alone()] {
        let (loss, gradients) = case.train(batches, &[]);
        assert!((loss - recorded.losses["gelu"]).abs() < 1e-4, "{loss}");
        assert_close(&gradients, &theirs, 1e-5);
    }
}

#[test]
fn names_and_shapes_match_transformers() {
    let ours: BTreeMap<String, Vec<usize>> =
        names(&Transformer::new(&config(&[]), &Device::flex())).into_iter().collect();
    assert_eq!(ours, recorded().names);
}

#[test]
fn activations_and_separate_vocabularies_match_transformers() {
    let recorded = recorded();
    assert_eq!(recorded.losses.len(), 3);
    let separate = ("share_encoder_decoder_embeddings", false.into());
    let of_activation = |(name, loss): (&String, &f64)| (("activation_function", name.as_str().into()), *loss);
    let cases = recorded.losses.iter().map(of_activation).chain([(separate, recorded.separate)]);
    for ((key, value), theirs) in cases {
        let (ours, _) = Case::new(&config(&[(key, value)])).train(&[ALL], &[]);
        assert!((ours - theirs).abs() < 1e-4, "{key}: {ours} and {theirs}");
    }
}

#[test]
fn dropout_does_not_depend_on_the_micro_batch() {
    let rates = ["dropout", "attention_dropout", "activation_dropout"].map(|key| (key, 0.3.into()));
    for (norm_before, sines) in [(false, true), (true, false)] {
        let shape = [("normalize_before", norm_before.into()), ("static_position_embeddings", sines.into())];
        let case = Case::new(&config(&[&rates[..], &shape].concat()));
        let keys: Vec<Key> = (0..3).map(|sample| Key::root(7).index(sample)).collect();
        let (loss, gradients) = case.train(&[ALL], &keys);
        let (same, similar) = case.train(&alone(), &keys);
        assert!((loss - same).abs() < 1e-4, "{loss} and {same}");
        assert_close(&similar, &gradients, 1e-5);
        let (without, _) = case.train(&[ALL], &[]);
        assert!((loss - without).abs() > 0.1, "there is no dropout");
    }
}

/// The model for the search. Without a cache it computes each hypothesis from its start in every
/// step.
struct SearchModel<'a> {
    model: &'a Transformer,
    source: Vec<Vec<i32>>,
    cache: Option<Decoding<'a>>,
    /// Without a cache: sentence and input tokens of each row.
    inputs: Vec<(usize, Vec<i32>)>,
    device: Device,
}

impl<'a> SearchModel<'a> {
    fn new(model: &'a Transformer, source: &[Vec<i32>], beam: usize, is_cached: bool) -> Self {
        let device = Device::flex();
        let longest = source.iter().map(Vec::len).max().unwrap();
        let cache = is_cached.then(|| Decoding::new(model, &padded(source, longest, &device)));
        let inputs = (0..source.len() * beam).map(|row| (row / beam, Vec::new())).collect();
        SearchModel { model, source: source.to_vec(), cache, inputs, device }
    }
}

impl BeamModel for SearchModel<'_> {
    fn step(&mut self, tokens: &[u32], count: usize) -> Vec<Vec<(u32, f32)>> {
        if let Some(cache) = &mut self.cache {
            return top_k_of_rows(cache.step(tokens), count);
        }
        let mut best = Vec::new();
        for ((sentence, inputs), &token) in self.inputs.iter_mut().zip(tokens) {
            inputs.push(token as i32);
            let source = padded(&self.source[*sentence..=*sentence], self.source[*sentence].len(), &self.device);
            let target = padded(std::slice::from_ref(inputs), inputs.len(), &self.device);
            let hidden = self.model.hidden(&source, &target, &[]);
            let last = Tensor::<1, Int>::from_data([inputs.len() as i32 - 1], &self.device);
            best.extend(top_k_of_rows(self.model.logits_at(hidden, last), count));
        }
        best
    }

    fn reorder(&mut self, rows: &[usize], sentences: Option<&[usize]>) {
        if let Some(cache) = &mut self.cache {
            cache.reorder(rows);
            if let Some(sentences) = sentences {
                cache.keep_sentences(sentences);
            }
        }
        self.inputs = rows.iter().map(|&row| self.inputs[row].clone()).collect();
    }
}

struct Search {
    model: Transformer,
    source: Vec<Vec<i32>>,
}

impl Search {
    fn new() -> Self {
        let (device, mut stream) = (Device::flex(), Stream(31));
        let model = model(&config(&[]), &mut stream, &device, 0.5);
        let lengths: Vec<usize> = stream.bytes(12).into_iter().map(|byte| 3 + usize::from(byte) % 10).collect();
        Search { model, source: rows(&mut stream, &lengths) }
    }

    fn run(&self, beam: usize, length_penalty: f64, sentences: Range<usize>, is_cached: bool) -> Vec<Vec<Hypothesis>> {
        let settings =
            BeamSettings { beam, length_penalty, start: PAD as u32, end: END as u32, banned: Some(PAD as u32) };
        let mut model = SearchModel::new(&self.model, &self.source[sentences.clone()], beam, is_cached);
        search(&mut model, &vec![MAX_TOKENS; sentences.len()], &settings)
    }
}

#[test]
fn the_search_matches_transformers() {
    let case = Search::new();
    let mut lengths = std::collections::BTreeSet::new();
    for Found { beam, length_penalty, best } in recorded().found {
        let ours = case.run(beam, length_penalty, 0..case.source.len(), true);
        assert_eq!(ours.len(), best.len());
        for (ours, (tokens, score)) in ours.iter().zip(&best) {
            assert_eq!(&ours[0].tokens, tokens, "beam {beam}, penalty {length_penalty}");
            if let Some(score) = score {
                assert!((ours[0].score - score).abs() < 1e-4, "{} and {score}", ours[0].score);
            }
            lengths.insert(tokens.len());
        }
    }
    assert!(lengths.len() > 5, "hypotheses of one length prove little: {lengths:?}");
}

#[test]
fn cache_and_batching_do_not_change_the_search() {
    let case = Search::new();
    let all = 0..case.source.len();
    for beam in [1, 4] {
        let batched = case.run(beam, 1.0, all.clone(), true);
        assert_eq!(tokens(&batched), tokens(&case.run(beam, 1.0, all.clone(), false)), "without a cache");
        let alone = all.clone().flat_map(|at| case.run(beam, 1.0, at..at + 1, true)).collect::<Vec<_>>();
        assert_eq!(tokens(&batched), tokens(&alone), "one by one");
        assert!(batched.iter().all(|hypotheses| hypotheses.len() == beam));
        assert!(batched.iter().flatten().zip(alone.iter().flatten()).all(|(a, b)| (a.score - b.score).abs() < 1e-5));
    }
}

#[test]
fn a_beam_of_one_is_greedy() {
    let case = Search::new();
    let found = case.run(1, 1.0, 0..case.source.len(), true);
    for (sentence, found) in found.iter().enumerate() {
        let mut model = SearchModel::new(&case.model, &case.source[sentence..=sentence], 1, false);
        let (mut last, mut tokens) = (PAD as u32, Vec::new());
        while tokens.len() < MAX_TOKENS {
            let best = model.step(&[last], 2).remove(0);
            last = best.iter().map(|(token, _)| *token).find(|&token| token != PAD as u32).unwrap();
            if last == END as u32 {
                break;
            }
            tokens.push(last);
        }
        assert_eq!(found[0].tokens, tokens);
    }
}

fn tokens(found: &[Vec<Hypothesis>]) -> Vec<Vec<&[u32]>> {
    found.iter().map(|hypotheses| hypotheses.iter().map(|hypothesis| &hypothesis.tokens[..]).collect()).collect()
}
