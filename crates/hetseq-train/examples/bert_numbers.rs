//! Writes the intermediate values of a BERT: loads a Hugging Face directory, runs a micro-batch and
//! writes hidden states, logits, losses and gradients. For comparing with other programs
//! (`scripts/check-minilm`, `scripts/check-bert`), and as an example of using a trained model from
//! Rust. It does not train.
//!
//!     bert_numbers MODEL INPUT.safetensors OUTPUT.safetensors
//!
//! INPUT: `tokens` and `segments` [sample, position], `lengths` [sample], all int32; for losses,
//! `masked_positions` (`row * positions + column`) and `masked_ids`, and `next_sentence` [sample];
//! for a projection, `hidden_weights` [sample, position, feature] and `pooled_weights`
//! [sample, feature], float32.
//!
//! OUTPUT: `hidden`, `pooled`, `masked_logits`, `next_sentence_logits`, `losses` (the two sums),
//! `missing` (the number of parameters that the files lack), and `gradient.<parameter>` of the
//! minimized scalar: both mean losses plus the projection.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use fs_err as fs;
use hetseq_models::ParameterPath;
use hetseq_models::bert::{Bert, BertConfig, BertInput, Labelled, parameter_name};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, input, output] = arguments.as_slice() else {
        bail!("usage: bert_numbers MODEL INPUT.safetensors OUTPUT.safetensors");
    };
    let device = Device::flex().autodiff();
    let dir = Path::new(model);
    let config = BertConfig::from_json(&fs::read_to_string(dir.join("config.json"))?)?;
    let (model, found) =
        hetseq_train::checkpoint::weights::load(Bert::new(&config, &device), dir, &parameter_name, &device)?;
    ensure!(found.unused.is_empty(), "unknown tensors: {}", found.unused.join(", "));

    let bytes = fs::read(input)?;
    let mut numbers = compute(&model, &InputFile(SafeTensors::deserialize(&bytes)?), &device)?;
    numbers.insert("missing".to_owned(), (vec![1], vec![found.missing.len() as f32]));
    write(&numbers, Path::new(output))
}

/// Shape and values, by name.
type Numbers = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn compute(model: &Bert, input: &InputFile<'_>, device: &Device) -> anyhow::Result<Numbers> {
    let lengths: Vec<usize> = input.ints("lengths")?.iter().map(|&length| length as usize).collect();
    let sequences = BertInput::new(&input.ints("tokens")?, &input.ints("segments")?, &lengths, device);
    let follows = input.ints("next_sentence")?;
    let rows: Vec<i32> = (0..follows.len() as i32).collect();
    let words = Labelled::new(&input.ints("masked_positions")?, &input.ints("masked_ids")?, device);
    let sentences = Labelled::new(&rows, &follows, device);

    let hidden = model.hidden(&sequences, &[], None);
    let pooled = model.pooled(hidden.clone());
    let mut numbers = Numbers::new();
    let mut minimized = Tensor::<1>::zeros([1], device);
    let mut losses = Vec::new();
    let answers = model.predict(&sequences, &words, &sentences, &[], None);
    for ((name, labelled), answers) in
        [("masked_logits", words), ("next_sentence_logits", sentences)].iter().zip(answers)
    {
        losses.extend(values(answers.loss.clone())?);
        if let Some(logits) = answers.logits {
            minimized = minimized + answers.loss / labelled.labels.dims()[0] as f32;
            insert(&mut numbers, name, logits)?;
        }
    }
    numbers.insert("losses".to_owned(), (vec![losses.len()], losses));
    if let Some(weights) = input.floats("hidden_weights", device)? {
        minimized = minimized + (hidden.clone() * weights).sum();
    }
    if let Some(weights) = input.floats("pooled_weights", device)? {
        minimized = minimized + (pooled.clone() * weights).sum();
    }
    insert(&mut numbers, "hidden", hidden)?;
    insert(&mut numbers, "pooled", pooled)?;
    let gradients = minimized.backward();
    let mut visitor = GradientVisitor { path: ParameterPath::default(), gradients, numbers, error: None };
    model.visit(&mut visitor);
    match visitor.error {
        Some(error) => Err(error),
        None => Ok(visitor.numbers),
    }
}

fn values<const D: usize>(tensor: Tensor<D>) -> anyhow::Result<Vec<f32>> {
    Ok(tensor.try_into_data()?.try_to_vec()?)
}

fn insert<const D: usize>(numbers: &mut Numbers, name: &str, tensor: Tensor<D>) -> anyhow::Result<()> {
    numbers.insert(name.to_owned(), (tensor.dims().to_vec(), values(tensor)?));
    Ok(())
}

/// Collects the gradient of every parameter that the scalar depends on.
struct GradientVisitor {
    path: ParameterPath,
    gradients: Gradients,
    numbers: Numbers,
    error: Option<anyhow::Error>,
}

impl ModuleVisitor for GradientVisitor {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, container: &str) {
        self.path.exit(container);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = param.val().grad(&self.gradients) else { return };
        if let Err(error) = insert(&mut self.numbers, &format!("gradient.{}", self.path.name()), gradient) {
            self.error = Some(error);
        }
    }
}

struct InputFile<'a>(SafeTensors<'a>);

impl InputFile<'_> {
    /// The values of a tensor; empty if there is no such tensor.
    fn ints(&self, name: &str) -> anyhow::Result<Vec<i32>> {
        let Ok(tensor) = self.0.tensor(name) else { return Ok(Vec::new()) };
        ensure!(tensor.dtype() == Dtype::I32, "{name} is {:?}, not int32", tensor.dtype());
        Ok(tensor.data().as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect())
    }

    fn floats<const D: usize>(&self, name: &str, device: &Device) -> anyhow::Result<Option<Tensor<D>>> {
        let Ok(tensor) = self.0.tensor(name) else { return Ok(None) };
        ensure!(tensor.dtype() == Dtype::F32, "{name} is {:?}, not float32", tensor.dtype());
        ensure!(tensor.shape().len() == D, "{name} has shape {:?}, not {D} dimensions", tensor.shape());
        let values: Vec<f32> = tensor.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        Ok(Some(Tensor::from_data(TensorData::new(values, tensor.shape().to_vec()), device)))
    }
}

fn write(numbers: &Numbers, path: &Path) -> anyhow::Result<()> {
    let bytes: Vec<Vec<u8>> =
        numbers.values().map(|(_, values)| values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views = numbers
        .iter()
        .zip(&bytes)
        .map(|((name, (shape, _)), bytes)| Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)));
    let views = views.collect::<anyhow::Result<Vec<_>>>()?;
    safetensors::serialize_to_file(views, None, path).with_context(|| format!("writing {}", path.display()))
}
