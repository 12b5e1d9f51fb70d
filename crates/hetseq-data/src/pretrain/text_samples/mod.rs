//! Samples built from text on demand: cut once, paired and masked again in every epoch. Opened by
//! `PretrainData`.
//!
//! A sample is a segment of a document ([`segments`](super::segments)). In an epoch it is split in
//! two and may exchange its second half with another sample
//! ([`segment_pairs`](super::segment_pairs)); then it is masked ([`mask`](crate::mask)). The result
//! is a pure function of the corpus, the config and the keys of the epoch.
//!
//! The length of a sample is the padded length of its class: an upper bound that is the same in
//! every epoch, and rarely more than a dozen tokens above the actual length.

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use hetseq_random::Key;

use super::batch::PretrainBatch;
use super::config::PretrainConfig;
use super::segment_pairs::{GROUP, PairMember, exchange_probability, group, pair_up};
use super::segments::{LengthClass, Segment, Segments};
use crate::error::{CorpusError, DataError};
use crate::mask::{Masked, mask};
use crate::plan::SampleLengths;
use crate::source::corpus::TextCorpus;
use crate::source::rows::Row;
use crate::tokenize::Vocabulary;

/// The samples of a corpus.
#[derive(Debug)]
pub struct TextSamples {
    corpus: Arc<TextCorpus>,
    config: PretrainConfig,
    segments: Segments,
}

/// Buffers that are reused from sample to sample.
#[derive(Debug, Default)]
struct Scratch {
    /// The group of a sample, and the sentence ends inside each member.
    group: Vec<(u32, Segment)>,
    sentence_ends: [Vec<usize>; GROUP],
    masked: Vec<Masked>,
}

/// A range of tokens in a shard.
#[derive(Debug)]
struct Piece {
    shard: u16,
    tokens: Range<usize>,
}

/// The sample that another one may exchange its second half with.
#[derive(Debug)]
struct Partner {
    id: u32,
    segment: Segment,
    /// The split points of the sample and of its partner.
    splits: [usize; 2],
    /// The largest length of a second half.
    max_second: usize,
}

/// The two halves of a sample in an epoch.
#[derive(Debug)]
struct Halves {
    first: Piece,
    second: Piece,
    /// Whether the second half is from another sample.
    is_exchanged: bool,
}

impl TextSamples {
    pub fn new(corpus: impl Into<Arc<TextCorpus>>, config: &PretrainConfig) -> Result<Self, DataError> {
        config.check()?;
        let corpus = corpus.into();
        let segments = Segments::cut(&corpus, config)?;
        Ok(TextSamples { corpus, config: config.clone(), segments })
    }

    /// The number of samples per epoch; the same in all epochs.
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn corpus(&self) -> &TextCorpus {
        &self.corpus
    }

    pub fn vocabulary(&self) -> &Vocabulary {
        self.corpus.vocabulary()
    }

    /// The padded length of the longest batch.
    pub fn longest(&self) -> usize {
        self.config.max_seq_length
    }

    /// Upper bounds of the padded lengths of the samples.
    pub fn lengths(&self) -> SampleLengths {
        let special = self.config.special_tokens();
        let bounds = self.segments.bounds(self.config.next_sentence);
        SampleLengths::PerSample(bounds.map(|text| self.config.padded(text + special) as u32).collect())
    }

    /// A hash of the text and of the settings that cut it.
    pub fn fingerprint(&self) -> String {
        let PretrainConfig { max_seq_length, next_sentence, short_seq_prob, cut_seed, .. } = self.config;
        let cut = format!("{max_seq_length} {next_sentence} {short_seq_prob} {cut_seed}");
        blake3::hash(format!("{} {cut}", self.corpus.fingerprint()).as_bytes()).to_hex()[..16].to_owned()
    }

    /// Builds a batch. `key` returns the key of any sample in this epoch, also of samples outside
    /// `ids`: a sample depends on its partner's key, and the key of sample 0 determines the pairs.
    pub fn collate(&self, ids: &[u32], key: &dyn Fn(u32) -> Key) -> Result<PretrainBatch, DataError> {
        let mut scratch = Scratch::default();
        let mut rows = Vec::with_capacity(ids.len());
        for &id in ids {
            let mut row = Row::default();
            self.fill(id, key, &mut scratch, &mut row)?;
            rows.push(row);
        }
        Ok(PretrainBatch::new(&rows, self.vocabulary().special.pad, &self.config))
    }

    /// Returns one masked sample.
    pub fn row(&self, id: u32, key: &dyn Fn(u32) -> Key) -> Result<Row, DataError> {
        let mut row = Row::default();
        self.fill(id, key, &mut Scratch::default(), &mut row)?;
        Ok(row)
    }

    fn fill(&self, id: u32, key: &dyn Fn(u32) -> Key, scratch: &mut Scratch, row: &mut Row) -> Result<(), DataError> {
        let (Some(own), Some(class)) = (self.segments.get(id), self.segments.class(id)) else {
            return Err(CorpusError::NoSuchSample { sample: id, samples: self.len() }.into());
        };
        let special = self.vocabulary().special;
        row.ids.clear();
        row.ids.push(special.cls);
        if self.config.next_sentence {
            let halves = self.halves(id, own, class, key, scratch);
            row.is_random_next = halves.is_exchanged;
            self.append(&halves.first, row)?;
            row.ids.push(special.sep);
            row.first_segment = row.ids.len();
            self.append(&halves.second, row)?;
        } else {
            row.is_random_next = false;
            self.append(&own.until(own.length.into()), row)?;
            row.first_segment = row.ids.len() + 1;
        }
        row.ids.push(special.sep);

        mask(&mut row.ids, key(id).name("mask"), &self.config.masking, self.vocabulary(), &mut scratch.masked);
        row.masked_positions.clear();
        row.masked_positions.extend(scratch.masked.iter().map(|masked| masked.position));
        row.masked_ids.clear();
        row.masked_ids.extend(scratch.masked.iter().map(|masked| masked.id));
        Ok(())
    }

    /// Splits a sample and decides whether it exchanges its second half. Both partners get the same
    /// result.
    fn halves(
        &self,
        id: u32,
        own: Segment,
        class: &LengthClass,
        key: &dyn Fn(u32) -> Key,
        scratch: &mut Scratch,
    ) -> Halves {
        let Some(Partner { id: other_id, segment: other, splits: [own_split, other_split], max_second }) =
            self.partner(id, class, key, scratch)
        else {
            let sentence_ends = &mut scratch.sentence_ends[0];
            self.sentence_ends(&own, sentence_ends);
            let choice = key(id).name("part").below(0, sentence_ends.len().max(1) as u64) as usize;
            let split = sentence_ends.get(choice).copied().unwrap_or(usize::from(own.length).div_ceil(2));
            return Halves { first: own.until(split), second: own.from(split), is_exchanged: false };
        };
        let coin = f64::from(key(id.min(other_id)).name("coin").unit(0));
        let is_exchanged = coin < exchange_probability(class.same_document) && !self.is_same_document(&own, &other);
        let second = if is_exchanged { other.from(other_split) } else { own.from(own_split) };
        Halves { first: own.until(own_split), second: second.truncate(max_second), is_exchanged }
    }

    /// The partner of a sample in this epoch. None if the sample is left over.
    fn partner(
        &self,
        id: u32,
        class: &LengthClass,
        key: &dyn Fn(u32) -> Key,
        scratch: &mut Scratch,
    ) -> Option<Partner> {
        let epoch = key(0).name("pairs").index(u64::from(class.samples.start));
        let Scratch { group: members, sentence_ends, .. } = scratch;
        members.clear();
        members.extend(
            group(id, class.samples.clone(), epoch).filter_map(|other| Some((other, self.segments.get(other)?))),
        );
        for ((_, segment), ends) in members.iter().zip(&mut *sentence_ends) {
            self.sentence_ends(segment, ends);
        }
        let shapes: [PairMember<'_>; GROUP] = std::array::from_fn(|at| PairMember {
            sentence_ends: &sentence_ends[at],
            length: members.get(at).map_or(0, |(_, segment)| segment.length.into()),
            ends_sentence: !class.boundaries.ends_inside,
        });
        let lowest = members.iter().map(|&(id, _)| id).min()?;
        let pairs = pair_up(&shapes[..members.len()], &class.lengths, key(lowest).name("pair"));
        pairs.into_iter().flatten().find_map(|pair| {
            let own = pair.members.iter().position(|&at| members[at].0 == id)?;
            let (id, segment) = members[pair.members[1 - own]];
            let splits = [pair.splits[own], pair.splits[1 - own]];
            Some(Partner { id, segment, splits, max_second: pair.max_second })
        })
    }

    fn is_same_document(&self, one: &Segment, other: &Segment) -> bool {
        let shard = &self.corpus.shards()[usize::from(one.shard)];
        one.shard == other.shard && shard.document_of(one.tokens().start) == shard.document_of(other.tokens().start)
    }

    /// Collects the sentence ends inside a segment, in tokens from its start.
    fn sentence_ends(&self, segment: &Segment, found: &mut Vec<usize>) {
        let shard = &self.corpus.shards()[usize::from(segment.shard)];
        let Range { start, end } = segment.tokens();
        found.clear();
        let ends = (shard.sentence_of(start)..shard.sentences()).map(|sentence| shard.sentence_end(sentence));
        found.extend(ends.take_while(|&at| (start..end).contains(&at)).map(|at| at - start));
    }

    fn append(&self, piece: &Piece, row: &mut Row) -> Result<(), DataError> {
        let shard = &self.corpus.shards()[usize::from(piece.shard)];
        let from = row.ids.len();
        shard.ids(piece.tokens.clone(), &mut row.ids);
        // Mapped bytes may have changed since they were written, and an id outside the model's
        // vocabulary would make the model fail.
        let vocabulary = self.vocabulary().size();
        match row.ids[from..].iter().find(|&&id| id as usize >= vocabulary) {
            None => Ok(()),
            Some(&id) => Err(CorpusError::IdBeyondVocabulary { path: shard.path().to_owned(), id, vocabulary }.into()),
        }
    }
}

impl Segment {
    /// The first `tokens` tokens.
    fn until(&self, tokens: usize) -> Piece {
        Piece { shard: self.shard, tokens: self.tokens().start..self.tokens().start + tokens }
    }

    /// All but the first `tokens` tokens.
    fn from(&self, tokens: usize) -> Piece {
        Piece { shard: self.shard, tokens: self.tokens().start + tokens..self.tokens().end }
    }
}

impl Piece {
    /// The first `max` tokens.
    fn truncate(mut self, max: usize) -> Self {
        self.tokens.end = self.tokens.start + self.tokens.len().min(max);
        self
    }
}
