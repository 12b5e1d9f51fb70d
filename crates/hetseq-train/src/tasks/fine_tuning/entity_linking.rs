//! `entity-linking`: finds the mentions of entities in the words of CoNLL files, and says which
//! entity of a dictionary each one is. One head labels the words; the other maps a mention to a
//! vector that is compared with frozen entity embeddings by cosine similarity.
//!
//! Each head has its own loss term and denominator: labelled tokens, and mentions whose entity is in
//! the dictionary. `hetseq_data::finetune::EntitySamples` states the rules for other mentions.

use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::activation::softmax;
use burn::tensor::{Device, Int, Tensor};
use hetseq_data::finetune::{
    ConllColumns, ConllFile, ConllLabels, EntitySamples, EntityTable, LabelSet, LongSentences, MentionCounts,
    TokenSampleConfig,
};
use hetseq_metrics::{GoldEntity, GoldMention, LinkSums, PredictedMention, TagScheme, entity_spans};
use hetseq_models::bert::{BertClassifier, BertConfig, ClassifierArchitecture};
use hetseq_models::loss::cross_entropy_sum;

use super::predict::best;
use super::predicted_words::PredictedWords;
use super::shared_keys::{FineTuningConfig, Pretrained, fine_tuning_config};
use super::token_classification::{described, first_positions};
use super::{BertHead, ForwardPass, Predicted, unreadable};
use crate::inference::PredictionFormat;
use crate::task::{Answer, Metric, StepOutput, TaskError, Term, Totals};

fine_tuning_config! {
    /// The `[task]` table of `entity-linking`.
    pub struct EntityLinkingConfig {
        /// A CoNLL file: a word, its tag and its entity per line, a blank line between sentences.
        pub train: PathBuf,
        /// Entity embeddings: a text file of word2vec, or a `.safetensors` file with one matrix.
        pub entities: PathBuf,
        /// With `.safetensors`: the names of the rows, one per line.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub entity_names: Option<PathBuf>,
        /// Columns of the files, from 0; negative numbers count from the last.
        #[serde(default)]
        pub token_column: i32,
        #[serde(default = "second_to_last")]
        pub label_column: i32,
        #[serde(default = "last")]
        pub entity_column: i32,
        /// The weight of the loss of entities; that of mentions is 1.
        #[serde(default = "one")]
        pub entity_weight: f64,
        /// What to do with longer sentences: `windows` that overlap, or `truncate`.
        #[serde(default)]
        pub long_sentences: LongSentences,
        /// Words that a window shares with the next.
        #[serde(default = "sixteen")]
        pub overlap_words: usize,
    }
}

/// What is learned: labels that mark mentions, and vectors of entities.
pub struct EntityHead {
    labels: LabelSet,
    entities: Arc<EntityTable>,
    entity_weight: f64,
    samples: TokenSampleConfig,
}

/// The entity of words that are in no mention.
const NO_ENTITY: &str = "-";

impl BertHead for EntityHead {
    const TASK: &'static str = "entity-linking";
    // It finds the mentions; the other head is ignored there.
    const ARCHITECTURE: ClassifierArchitecture = ClassifierArchitecture::Tokens;
    const PATH_KEYS: &'static [&'static str] =
        &["train", "valid", "init", "config", "tokenizer", "entities", "entity_names"];
    type Config = EntityLinkingConfig;
    type File = ConllFile;
    type Samples = EntitySamples;

    fn read(config: &Self::Config, path: &Path, with_labels: bool) -> Result<ConllFile, TaskError> {
        let EntityLinkingConfig { token_column, label_column, entity_column, .. } = *config;
        let labels = if with_labels { ConllLabels::Required } else { ConllLabels::IfPresent };
        let columns = ConllColumns { token_column, label_column, entity_column: Some(entity_column) };
        Ok(ConllFile::read(path, &columns, labels)?)
    }

    fn open(config: &Self::Config, train: &ConllFile) -> Result<Self, TaskError> {
        Self::of_checkpoint(config, config.shared().label_set(train.label_names())?)
    }

    /// The entities are those of the config: a model can link to others of the same space.
    fn of_checkpoint(config: &Self::Config, labels: LabelSet) -> Result<Self, TaskError> {
        let EntityLinkingConfig { entity_weight, long_sentences, overlap_words, .. } = *config;
        if !(entity_weight.is_finite() && entity_weight > 0.0) {
            return Err(format!("task.entity_weight = {entity_weight} must be a number above 0").into());
        }
        let entities = Arc::new(EntityTable::read(&config.entities, config.entity_names.as_deref())?);
        let (max_seq_length, pad_to_multiple) = (config.max_seq_length, config.pad_to_multiple);
        let samples =
            TokenSampleConfig { max_seq_length, pad_to_multiple, label_all: false, long_sentences, overlap_words };
        Ok(EntityHead { labels, entities, entity_weight, samples })
    }

    fn samples(&self, file: &ConllFile, start: &Pretrained, with_labels: bool) -> Result<EntitySamples, TaskError> {
        if !with_labels {
            // Every word gets a prediction.
            let config = TokenSampleConfig { long_sentences: LongSentences::Windows, ..self.samples.clone() };
            return Ok(EntitySamples::new(file, None, &self.entities, &start.tokenizer, &config)?);
        }
        let labels = Some(&self.labels);
        let samples = EntitySamples::new(file, labels, &self.entities, &start.tokenizer, &self.samples)?;
        report(file.path(), &samples);
        Ok(samples)
    }

    fn labels(&self) -> Vec<String> {
        self.labels.names().to_vec()
    }

    fn model(&self, config: &BertConfig, device: &Device) -> BertClassifier {
        BertClassifier::of_mentions(config, self.labels.len(), self.entities.dim(), device)
    }

    /// Mentions, by labelled tokens; entities, by mentions that can be linked.
    fn terms(&self) -> Vec<Term> {
        let term = |name: &str, weight| Term { name: name.to_owned(), weight };
        vec![term("mentions", 1.0), term("entities", self.entity_weight)]
    }

    fn forward(&self, pass: &ForwardPass<'_, Self>) -> Result<StepOutput, TaskError> {
        let (labels, linkable) = (pass.batch.i32s("labels")?, pass.batch.i32s("mention_positions")?);
        let device = &pass.ctx.device;
        // Not every backend supports empty tensors.
        let mut losses = vec![Tensor::zeros([1], device), Tensor::zeros([1], device)];
        let mut counts = [0; LinkSums::COUNTS];
        if !labels.is_empty() {
            let hidden = pass.model.hidden(&pass.input, &pass.ctx.keys, pass.tape);
            let at = pass.ctx.ints::<1>(pass.batch, "label_positions")?;
            let logits = pass.model.token_logits(hidden.clone(), at.clone());
            losses[0] = cross_entropy_sum(logits.clone(), Tensor::<1, Int>::from_data(labels, device));
            if !linkable.is_empty() {
                let found =
                    entity_vectors(pass.model, hidden.clone(), pass.ctx.ints(pass.batch, "mention_positions")?)?;
                losses[1] = cosine_distance_sum(found, pass.ctx.floats(pass.batch, "entity_vectors")?);
            }
            if !pass.ctx.is_training() {
                let vectors = entity_vectors(pass.model, hidden, at)?;
                counts = self.score(logits, vectors, pass)?.to_counts();
            }
        }
        let scores = if pass.ctx.is_training() { Vec::new() } else { pass.scores(counts) };
        Ok(StepOutput { losses, scores, ..StepOutput::default() })
    }

    /// F1 of mentions as spans; the accuracy of links if the mentions are given; precision, recall
    /// and F1 of mentions with the right entity.
    fn metrics(&self, totals: &Totals, _samples: &EntitySamples) -> Vec<Metric> {
        let count = |at: usize| totals.scores.get(at).copied().unwrap_or(0.0) as u64;
        let counts: Vec<u64> = (0..LinkSums::COUNTS).map(count).collect();
        let sums = LinkSums::from_counts(&counts).unwrap_or_default();
        let links = sums.link_score();
        vec![
            Metric::higher("f1", links.f1),
            Metric::higher("precision", links.precision),
            Metric::higher("recall", links.recall),
            Metric::higher("mention_f1", sums.mention_score().f1),
            Metric::higher("linking_accuracy", sums.accuracy()),
        ]
    }

    /// For each labelled word of a sample its label with the probability, and the entity of its
    /// mention with the similarity.
    fn answers(&self, pass: &ForwardPass<'_, Self>) -> Result<Vec<Answer>, TaskError> {
        let hidden = pass.model.hidden(&pass.input, &pass.ctx.keys, pass.tape);
        let at = pass.ctx.ints::<1>(pass.batch, "label_positions")?;
        let logits = pass.model.token_logits(hidden.clone(), at.clone());
        let tags = self.tags(softmax(logits, 1))?;
        let firsts = first_positions(pass.samples.tokens(), &pass.ctx.samples);
        let found: Vec<_> = firsts.iter().map(|positions| mentions(&tags, positions)).collect::<Result<_, _>>()?;
        let starts = firsts.iter().zip(&found).flat_map(|(positions, found)| found.iter().map(|m| positions[m.start]));
        let mut nearest =
            self.nearest(entity_vectors(pass.model, hidden, at)?, &starts.collect::<Vec<_>>())?.into_iter();
        let answer = |(positions, found): (Vec<usize>, Vec<Range<usize>>)| {
            let mut entities = vec![(NO_ENTITY.to_owned(), 0.0); positions.len()];
            for (words, (entity, similarity)) in found.into_iter().zip(nearest.by_ref()) {
                let name = self.entities.name(entity).unwrap_or(NO_ENTITY);
                entities[words].fill((name.to_owned(), similarity.into()));
            }
            let tags = positions.iter().map(|&at| tags[at].clone());
            let texts = tags.zip(entities).flat_map(|(tag, entity)| [tag, entity]).collect();
            Answer { texts, tokens: positions.len() }
        };
        Ok(firsts.into_iter().zip(found).map(answer).collect())
    }

    fn write(&self, predicted: &Predicted<'_, Self>, format: PredictionFormat, out: &mut dyn Write) -> io::Result<()> {
        let words = PredictedWords::new(predicted.file, predicted.samples.tokens(), predicted.answers, 2);
        words.write(format, &[["labels", "probabilities"], ["entities", "similarities"]], out)
    }
}

impl EntityHead {
    /// The label of each labelled position, with the largest value of its row of `rows`.
    fn tags(&self, rows: Tensor<2>) -> Result<Vec<(String, f64)>, TaskError> {
        let rows: Vec<f32> = rows.try_into_vec_as().map_err(|error| unreadable(&error))?;
        let name = |class: usize| self.labels.name(class as u32).unwrap_or("O").to_owned();
        Ok(rows.chunks_exact(self.labels.len()).map(|row| best(row, name)).collect())
    }

    /// The entities that are nearest to the vectors at some positions, with their similarities.
    fn nearest(&self, vectors: Tensor<2>, at: &[usize]) -> Result<Vec<(u32, f32)>, TaskError> {
        let vectors: Vec<f32> = vectors.try_into_vec_as().map_err(|error| unreadable(&error))?;
        let rows: Vec<&[f32]> = vectors.chunks_exact(self.entities.dim()).collect();
        let wanted: Vec<f32> = at.iter().filter_map(|&at| rows.get(at)).copied().flatten().copied().collect();
        Ok(self.entities.nearest_of_rows(&wanted))
    }

    /// Counts the mentions and links of a batch. `vectors` are those of all labelled positions.
    fn score(
        &self,
        logits: Tensor<2>,
        vectors: Tensor<2>,
        pass: &ForwardPass<'_, Self>,
    ) -> Result<LinkSums, TaskError> {
        let tags = self.tags(logits)?;
        let firsts = first_positions(pass.samples.tokens(), &pass.ctx.samples);
        let found: Vec<_> = firsts.iter().map(|positions| mentions(&tags, positions)).collect::<Result<_, _>>()?;
        let gold: Vec<&[GoldMention]> = pass.ctx.samples.iter().map(|&sample| pass.samples.mentions(sample)).collect();
        // One search for the batch: first the mentions that were found, then those of the data.
        let mut wanted = Vec::new();
        for ((positions, found), gold) in firsts.iter().zip(&found).zip(&gold) {
            let linkable = gold.iter().filter(|mention| matches!(mention.entity, GoldEntity::Linked(_)));
            let starts = found.iter().map(|words| words.start).chain(linkable.map(|mention| mention.words.start));
            wanted.push(starts.filter_map(|word| positions.get(word).copied()).collect::<Vec<_>>());
        }
        let mut nearest = self.nearest(vectors, &wanted.concat())?.into_iter().map(|(entity, _)| entity);
        let mut sums = LinkSums::default();
        for ((found, gold), wanted) in found.into_iter().zip(gold).zip(wanted) {
            let entities: Vec<u32> = nearest.by_ref().take(wanted.len()).collect();
            let (of_found, given) = entities.split_at(found.len().min(entities.len()));
            let link = |(words, &entity)| PredictedMention { words, entity: Some(entity) };
            let predicted: Vec<PredictedMention> = found.into_iter().zip(of_found).map(link).collect();
            sums.add(&LinkSums::of(gold, &predicted, given).map_err(|error| error.to_string())?);
        }
        Ok(sums)
    }
}

fn entity_vectors(model: &BertClassifier, hidden: Tensor<3>, at: Tensor<1, Int>) -> Result<Tensor<2>, TaskError> {
    model.entity_vectors(hidden, at).ok_or_else(|| "the model has no head for entities".into())
}

/// The mentions in the labelled words of a sample. `positions` are those of its words in `tags`.
fn mentions(tags: &[(String, f64)], positions: &[usize]) -> Result<Vec<Range<usize>>, TaskError> {
    let tags: Vec<&str> = positions.iter().filter_map(|&at| tags.get(at)).map(|(tag, _)| tag.as_str()).collect();
    let spans = entity_spans(TagScheme::Conlleval, &tags).map_err(|error| error.to_string())?;
    Ok(spans.into_iter().map(|span| span.start..span.end).collect())
}

/// The sum of 1 minus the cosine similarity of each row. Those of `expected` have length 1.
fn cosine_distance_sum(found: Tensor<2>, expected: Tensor<2>) -> Tensor<1> {
    let [rows, _] = found.dims();
    let product = (found.clone() * expected).sum_dim(1);
    let length = (found.clone() * found).sum_dim(1).clamp_min(SMALLEST_SQUARE).sqrt();
    (product / length).sum().neg().add_scalar(rows as f32)
}

/// A vector of zeros has no direction, and the square root of 0 no gradient.
const SMALLEST_SQUARE: f32 = 1e-12;

/// Says what became of the mentions of a file.
fn report(path: &Path, samples: &EntitySamples) {
    let counts = samples.counts();
    let MentionCounts { mentions, linked, unknown, out_of_dictionary, .. } = counts;
    tracing::info!(
        "{}: {}; {mentions} mentions: {linked} with an entity of the dictionary, {unknown} with an unknown one, \
         {out_of_dictionary} with another",
        path.display(),
        described(samples.tokens())
    );
    if *out_of_dictionary > 0 {
        tracing::warn!(
            "{}: {} entities are not in task.entities and cannot be linked, such as {}",
            path.display(),
            counts.out_of_dictionary_names,
            counts.examples.join(", ")
        );
    }
    if counts.ignored_entities > 0 {
        let words = counts.ignored_entities;
        tracing::warn!("{}: the entities of {words} words are ignored: they begin no mention", path.display());
    }
}

fn last() -> i32 {
    -1
}
fn second_to_last() -> i32 {
    -2
}
fn one() -> f64 {
    1.0
}
fn sixteen() -> usize {
    16
}
