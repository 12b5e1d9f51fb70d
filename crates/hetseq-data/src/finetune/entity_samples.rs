//! Samples for entity linking: [`TokenSamples`] whose mentions have entities. Opened by the
//! entity-linking task.
//!
//! The model learns two things: the tag of each word, which finds the mentions, and a vector for
//! each mention, which is compared with the vectors of an [`EntityTable`]. The rules:
//! - Mentions are the entities that `conlleval` finds in the tags of a sentence
//!   ([`TagScheme::Conlleval`](hetseq_metrics::TagScheme)). Tags may have a type (`B-PER`) or none
//!   (`B`, as in AIDA-CoNLL).
//! - The entity column holds the name of an entity. `-`, `_`, `O`, `NIL`, `--NME--` and nothing mean
//!   that it is *unknown*: the mention is learned, its link is not.
//! - The entity of a mention is that of its first word. The other words may repeat it or leave it
//!   unknown. A word that names another one is an error.
//! - An entity that is not in the table is *out of dictionary*. Its link is not learned either, and
//!   counts as missed.
//! - Entities of words outside mentions are ignored, and counted.
//! - A mention that two windows of a long sentence share belongs to the window in which its first
//!   word has its label, and ends with the labelled words there. Its rest is a mention with an
//!   unknown entity in the next window, as its tags are those of a mention: so a perfect prediction
//!   has a perfect score.
//! - The vector of a mention is learned at the first sub-token of its first word.

use std::ops::Range;
use std::sync::Arc;

use hetseq_metrics::{GoldEntity, GoldMention};

use super::config::TokenSampleConfig;
use super::label_set::LabelSet;
use super::labelled_samples::LabelledSamples;
use super::mentions::{FileMentions, MentionCounts};
use super::token_samples::{TokenSamples, TokenWindow};
use crate::arrays::Batch;
use crate::error::DataError;
use crate::plan::SampleLengths;
use crate::source::conll::ConllFile;
use crate::source::entity_table::EntityTable;
use crate::tokenize::Tokenizer;

/// The samples of one file, with their mentions.
#[derive(Debug)]
pub struct EntitySamples {
    tokens: TokenSamples,
    table: Arc<EntityTable>,
    /// The mentions of each sample, sorted. Words are numbered within its labelled words.
    mentions: Vec<Vec<GoldMention>>,
    counts: MentionCounts,
}

impl EntitySamples {
    /// Tokenizes a file and finds its mentions. `labels` is `None` for prediction: there are no
    /// mentions then, and the file needs neither labels nor entities.
    pub fn new(
        file: &ConllFile,
        labels: Option<&LabelSet>,
        table: &Arc<EntityTable>,
        tokenizer: &Tokenizer,
        config: &TokenSampleConfig,
    ) -> Result<Self, DataError> {
        let tokens = TokenSamples::new(file, labels, tokenizer, config)?;
        let FileMentions { sentences, mut counts } = match labels {
            Some(_) => FileMentions::new(file, table)?,
            None => FileMentions::default(),
        };
        let (mut mentions, mut kept) = (Vec::with_capacity(tokens.len()), 0);
        for TokenWindow { sentence, labelled, .. } in (0..tokens.len() as u32).filter_map(|at| tokens.window(at)) {
            let of_sentence = sentences.get(sentence).map_or(&[][..], Vec::as_slice);
            // Starts and ends of mentions are sorted.
            let first = of_sentence.partition_point(|mention| mention.words.end <= labelled.start);
            let last = of_sentence.partition_point(|mention| mention.words.start < labelled.end);
            let shared = &of_sentence[first..last];
            kept += shared.iter().filter(|mention| mention.words.start >= labelled.start).count();
            mentions.push(shared.iter().map(|mention| within(mention, &labelled)).collect());
        }
        counts.lost = counts.mentions.saturating_sub(kept);
        Ok(EntitySamples { tokens, table: Arc::clone(table), mentions, counts })
    }

    /// The same samples without entities: their number, windows, and positions of words.
    pub fn tokens(&self) -> &TokenSamples {
        &self.tokens
    }

    pub fn table(&self) -> &EntityTable {
        &self.table
    }

    pub fn counts(&self) -> &MentionCounts {
        &self.counts
    }

    /// The mentions of a sample, in their order. Words are numbered within its labelled words, so
    /// that 0 is the first word with a label.
    pub fn mentions(&self, sample: u32) -> &[GoldMention] {
        self.mentions.get(sample as usize).map_or(&[], Vec::as_slice)
    }
}

impl LabelledSamples for EntitySamples {
    fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.tokens.fingerprint().as_bytes());
        hasher.update(self.table.fingerprint().as_bytes());
        for mentions in &self.mentions {
            hasher.update(&(mentions.len() as u64).to_le_bytes());
            for GoldMention { words, entity } in mentions {
                let entity = match entity {
                    GoldEntity::Linked(id) => u64::from(*id) + 2,
                    GoldEntity::Unknown => 0,
                    GoldEntity::OutOfDictionary => 1,
                };
                for number in [words.start as u64, words.end as u64, entity] {
                    hasher.update(&number.to_le_bytes());
                }
            }
        }
        hasher.finalize().to_hex()[..16].to_owned()
    }

    fn lengths(&self) -> SampleLengths {
        self.tokens.lengths()
    }

    /// Builds a batch with the arrays and the count of [`TokenSamples`], and for each mention with an
    /// entity of the table, in the order of rows and words: `mention_positions` (`[mentions]`, the
    /// `row * width + column` of its first sub-token) and `entity_vectors` (`[mentions, dim]`). The
    /// second count is these mentions. There may be none: then both arrays are empty.
    fn collate(&self, ids: &[u32]) -> Result<Batch, DataError> {
        let batch = self.tokens.collate(ids)?;
        let (mut positions, mut vectors) = (Vec::new(), Vec::new());
        for (&sample, word_positions) in ids.iter().zip(self.tokens.word_positions(ids)?) {
            for GoldMention { words, entity } in self.mentions(sample) {
                if let (GoldEntity::Linked(id), Some(&position)) = (entity, word_positions.get(words.start)) {
                    positions.push(position);
                    vectors.extend_from_slice(self.table.vector(*id));
                }
            }
        }
        let mentions = positions.len();
        Ok(batch.with_count(mentions as u64).with_i32("mention_positions", [mentions], positions).with_f32(
            "entity_vectors",
            [mentions, self.table.dim()],
            vectors,
        ))
    }
}

/// The part of a mention inside some words, numbered from the first of them. Only the part with the
/// first word of the mention has its entity.
fn within(GoldMention { words, entity }: &GoldMention, part: &Range<usize>) -> GoldMention {
    let (start, end) = (words.start.max(part.start), words.end.min(part.end));
    let entity = if start == words.start { *entity } else { GoldEntity::Unknown };
    GoldMention { words: start - part.start..end - part.start, entity }
}
