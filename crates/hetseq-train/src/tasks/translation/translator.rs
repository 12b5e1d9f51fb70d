//! Translates a batch of token ids with beam search. [`translate`] is called by validation;
//! [`Translator`] is the inference of the task, for `hetseq generate`.

use std::path::Path;

use burn::tensor::Device;
use hetseq_data::{Batch, TranslateTokenizer};
use hetseq_kernels::top_k_of_rows;
use hetseq_models::beam::{self, BeamModel, BeamSettings, Hypothesis};
use hetseq_models::transformer::{Decoding, Transformer, TransformerConfig, TransformerInput, parameter_name};

use super::{TranslationTask, config, sequences};
use crate::inference::GenerateOptions;
use crate::task::{Answer, EncodedInput, ForwardContext, HuggingFace, Inference, Task, TaskError, TextInference};

/// A trained translation model: of a checkpoint of the task, or a Hugging Face directory of a
/// Marian model with a `tokenizer.json`.
pub struct Translator {
    model: TransformerConfig,
    tokenizer: TranslateTokenizer,
    options: GenerateOptions,
}

impl Inference for Translator {
    const TASK: &'static str = TranslationTask::NAME;
    const ARCHITECTURE: Option<&'static str> = Some("MarianMTModel");
    type Model = Transformer;

    fn model(&self, device: &Device) -> Transformer {
        Transformer::new(&self.model, device)
    }

    fn hugging_face(&self) -> &dyn HuggingFace {
        self
    }

    fn predict(&self, model: &Transformer, batch: &Batch, ctx: &ForwardContext) -> Result<Vec<Answer>, TaskError> {
        let GenerateOptions { beam, length_penalty, .. } = self.options;
        let settings = settings(&self.model, beam, length_penalty);
        let limit = |source_tokens| self.options.max_tokens(source_tokens);
        let found = translate(model, &self.model, batch, &limit, &settings, &ctx.device)?;
        let decode = |hypotheses: Vec<Hypothesis>| {
            let tokens = hypotheses.first().map_or(0, |best| best.tokens.len());
            let text = |hypothesis: Hypothesis| -> Result<(String, f64), TaskError> {
                Ok((self.tokenizer.decode_target(&hypothesis.tokens)?, hypothesis.score))
            };
            let texts = hypotheses.into_iter().map(text).collect::<Result<_, TaskError>>()?;
            Ok(Answer { texts, tokens })
        };
        found.into_iter().map(decode).collect()
    }
}

impl TextInference for Translator {
    fn open(checkpoint: &Path, options: &GenerateOptions) -> Result<Self, TaskError> {
        let model = config::read(checkpoint)?;
        let tokenizer = TranslateTokenizer::read(checkpoint)?;
        config::fits(&model, &tokenizer).map_err(|reason| format!("{}: {reason}", checkpoint.display()))?;
        Ok(Translator { model, tokenizer, options: options.clone() })
    }

    /// Truncates a line to the model's positions. Keeps the end token.
    fn encode(&self, line: &str) -> Result<EncodedInput, TaskError> {
        let mut tokens = self.tokenizer.encode_source(line)?;
        let (count, kept) = (tokens.len(), self.model.max_position_embeddings);
        if count > kept {
            tokens.truncate(kept - 1);
            tokens.push(self.tokenizer.source_special().eos);
        }
        Ok(EncodedInput { tokens, tokens_before_cut: (count > kept).then_some(count) })
    }

    fn collate(&self, lines: &[&EncodedInput]) -> Result<Batch, TaskError> {
        let longest = lines.iter().map(|line| line.tokens.len()).max().unwrap_or(0);
        let padding = std::iter::repeat(self.model.pad_token_id as i32);
        let row = |line: &&EncodedInput| {
            let ids = line.tokens.iter().map(|&id| id as i32);
            ids.chain(padding.clone()).take(longest).collect::<Vec<i32>>()
        };
        let lengths = lines.iter().map(|line| line.tokens.len() as i32).collect();
        Ok(Batch::new([]).with_i32("source", [lines.len(), longest], lines.iter().flat_map(row).collect()).with_i32(
            "source_lengths",
            [lines.len()],
            lengths,
        ))
    }
}

impl HuggingFace for Translator {
    fn parameter_name(&self, theirs: &str) -> Option<String> {
        parameter_name(theirs, self.model.share_encoder_decoder_embeddings)
    }

    fn allow_missing(&self, name: &str) -> bool {
        super::may_be_missing(name)
    }
}

/// Twice the source length plus ten: translations are rarely longer.
pub(super) fn usual_limit(source_tokens: usize) -> usize {
    2 * source_tokens + 10
}

pub(super) fn settings(model: &TransformerConfig, beam: usize, length_penalty: f64) -> BeamSettings {
    BeamSettings {
        beam,
        length_penalty,
        start: model.decoder_start_token_id as u32,
        end: model.eos_token_id as u32,
        banned: Some(model.pad_token_id as u32),
    }
}

/// Translates the rows of `source`, which should have similar lengths: none empty, none longer than
/// the model's positions. `limit` is the maximum number of tokens of a translation, including its
/// end, for a number of source tokens. The model's positions are a further limit.
pub(super) fn translate(
    model: &Transformer,
    config: &TransformerConfig,
    batch: &Batch,
    limit: &dyn Fn(usize) -> usize,
    settings: &BeamSettings,
    device: &Device,
) -> Result<Vec<Vec<Hypothesis>>, TaskError> {
    let source: TransformerInput = sequences(batch, "source", "source_lengths", device)?;
    let limit = |&length: &i32| limit(length as usize).min(config.max_position_embeddings);
    let limits: Vec<usize> = batch.i32s("source_lengths")?.iter().map(limit).collect();
    Ok(beam::search(&mut ModelStep(Decoding::new(model, &source)), &limits, settings))
}

struct ModelStep<'a>(Decoding<'a>);

impl BeamModel for ModelStep<'_> {
    fn step(&mut self, tokens: &[u32], count: usize) -> Vec<Vec<(u32, f32)>> {
        top_k_of_rows(self.0.step(tokens), count)
    }

    fn reorder(&mut self, rows: &[usize], sentences: Option<&[usize]>) {
        self.0.reorder(rows);
        if let Some(sentences) = sentences {
            self.0.keep_sentences(sentences);
        }
    }
}
