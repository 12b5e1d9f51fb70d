//! Samples that are made of text as they are needed: cut once, paired and masked anew in every epoch.
//!
//! A sample is a segment of a document ([`segments`](super::segments)). In an epoch it is parted in two and may have
//! exchanged its second half with another sample ([`pairs`](super::pairs)); then it is masked ([`mask`](crate::mask)).
//! All of it is a pure function of the corpus, the config and the keys of the epoch.
//!
//! The cost of a sample is the width that its length class is padded to: an upper bound, the same in every epoch, and
//! seldom more than a dozen tokens above what is there.

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use hetseq_random::Key;

use super::batch::PretrainBatch;
use super::config::PretrainConfig;
use super::pairs::{Places, heads, partner, places};
use super::segments::{Class, Segment, Segments};
use crate::error::{CorpusError, DataError};
use crate::mask::{Masked, mask};
use crate::plan::Costs;
use crate::source::corpus::TextCorpus;
use crate::source::rows::Row;
use crate::tokenize::Vocabulary;

/// A corpus as samples.
#[derive(Debug)]
pub struct TextSamples {
    corpus: Arc<TextCorpus>,
    config: PretrainConfig,
    segments: Segments,
}

/// What is used again from sample to sample, so that it is not allocated for each.
#[derive(Debug, Default)]
struct Desk {
    /// Where a sample and its partner may part.
    places: [Vec<usize>; 2],
    pieces: Vec<Piece>,
    masked: Vec<Masked>,
}

/// Some tokens of a shard.
#[derive(Debug)]
struct Piece {
    shard: u16,
    tokens: Range<usize>,
}

/// The two halves of a sample in an epoch.
#[derive(Debug)]
struct Halves {
    first: Piece,
    second: Piece,
    /// Whether the second half is another sample's.
    is_exchanged: bool,
}

impl TextSamples {
    pub fn new(corpus: impl Into<Arc<TextCorpus>>, config: &PretrainConfig) -> Result<Self, DataError> {
        config.check()?;
        let corpus = corpus.into();
        let segments = Segments::cut(&corpus, config)?;
        Ok(TextSamples { corpus, config: config.clone(), segments })
    }

    /// How many samples an epoch has: always the same.
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

    /// The width of the widest batch.
    pub fn longest(&self) -> usize {
        self.config.max_seq_length
    }

    pub fn costs(&self) -> Costs {
        let special = self.config.special_tokens();
        let bounds = self.segments.bounds(!self.config.next_sentence);
        Costs::PerSample(bounds.map(|text| self.config.padded(text + special) as u32).collect())
    }

    /// Identifies the text and how it is cut.
    pub fn fingerprint(&self) -> String {
        let PretrainConfig { max_seq_length, next_sentence, short_seq_prob, cut_seed, .. } = self.config;
        let cut = format!("{max_seq_length} {next_sentence} {short_seq_prob} {cut_seed}");
        let mut hex = blake3::hash(format!("{} {cut}", self.corpus.fingerprint()).as_bytes()).to_hex().to_string();
        hex.truncate(16);
        hex
    }

    /// Puts samples side by side. `key` gives the key of any sample in this epoch, also of those not asked for: a
    /// sample's partner has a say in it, and sample 0 speaks for the epoch.
    pub fn collate(&self, ids: &[u32], key: &dyn Fn(u32) -> Key) -> Result<PretrainBatch, DataError> {
        let mut desk = Desk::default();
        let mut rows = Vec::with_capacity(ids.len());
        for &id in ids {
            let mut row = Row::default();
            self.fill(id, key, &mut desk, &mut row)?;
            rows.push(row);
        }
        Ok(PretrainBatch::new(&rows, self.vocabulary().special.pad, &self.config))
    }

    /// One sample, masked.
    pub fn row(&self, id: u32, key: &dyn Fn(u32) -> Key) -> Result<Row, DataError> {
        let mut row = Row::default();
        self.fill(id, key, &mut Desk::default(), &mut row)?;
        Ok(row)
    }

    fn fill(&self, id: u32, key: &dyn Fn(u32) -> Key, desk: &mut Desk, row: &mut Row) -> Result<(), DataError> {
        let (Some(own), Some(class)) = (self.segments.get(id), self.segments.class(id)) else {
            return Err(CorpusError::NoSuchSample { sample: id, samples: self.len() }.into());
        };
        let special = self.vocabulary().special;
        row.ids.clear();
        row.ids.push(special.cls);
        desk.pieces.clear();
        let has_second = self.config.next_sentence;
        let first_pieces = if has_second {
            let halves = self.halves(id, own, class, key, desk);
            row.is_random_next = halves.is_exchanged;
            self.fit(halves, class.limit, &mut desk.pieces)
        } else {
            row.is_random_next = false;
            desk.pieces.push(Piece { shard: own.shard, tokens: own.tokens() });
            1
        };
        let (first, second) = desk.pieces.split_at(first_pieces);
        first.iter().try_for_each(|piece| self.append(piece, row))?;
        row.ids.push(special.sep);
        row.first_segment = row.ids.len();
        if has_second {
            second.iter().try_for_each(|piece| self.append(piece, row))?;
            row.ids.push(special.sep);
        }

        mask(&mut row.ids, key(id).name("mask"), &self.config.masking, self.vocabulary(), &mut desk.masked);
        row.masked_positions.clear();
        row.masked_positions.extend(desk.masked.iter().map(|masked| masked.position));
        row.masked_ids.clear();
        row.masked_ids.extend(desk.masked.iter().map(|masked| masked.id));
        Ok(())
    }

    /// Finds a sample's partner, where the two part, and whether they exchange. Both find the same.
    fn halves(&self, id: u32, own: Segment, class: &Class, key: &dyn Fn(u32) -> Key, desk: &mut Desk) -> Halves {
        let epoch = key(0).name("pairs").index(u64::from(class.samples.start));
        let partner =
            partner(id, class.samples.clone(), epoch).and_then(|other| Some((other, self.segments.get(other)?)));
        let Some((other_id, other)) = partner.filter(|(_, other)| !self.is_same_document(&own, other)) else {
            self.places(&own, &mut desk.places[0]);
            let choice = key(id).name("part").below(0, desk.places[0].len() as u64) as usize;
            let place = desk.places[0][choice];
            return Halves { first: own.until(place), second: own.from(place), is_exchanged: false };
        };
        let is_low = id < other_id;
        let (low, high) = if is_low { (own, other) } else { (other, own) };
        let pair = key(id.min(other_id)).name("pair");
        let [low_places, high_places] = &mut desk.places;
        self.places(&low, low_places);
        self.places(&high, high_places);
        let chosen = places(
            (low_places, usize::from(low.length)),
            (high_places, usize::from(high.length)),
            class.limit,
            pair.name("places"),
        );
        let (own_place, other_place) = match (is_low, chosen) {
            (true, Places { first, second }) => (first, second),
            (false, Places { first, second }) => (second, first),
        };
        let is_exchanged = f64::from(pair.name("coin").unit(0)) < heads(class.same_document);
        let second = if is_exchanged { other.from(other_place) } else { own.from(own_place) };
        Halves { first: own.until(own_place), second, is_exchanged }
    }

    /// Appends the pieces of both halves, and returns how many are of the first. If they are longer than `limit`, the pieces
    /// are sentences, and the longest loses what is too much.
    fn fit(&self, halves: Halves, limit: usize, pieces: &mut Vec<Piece>) -> usize {
        let mut excess = (halves.first.tokens.len() + halves.second.tokens.len()).saturating_sub(limit);
        if excess == 0 {
            pieces.extend([halves.first, halves.second]);
            return 1;
        }
        self.sentences(&halves.first, pieces);
        let first = pieces.len();
        self.sentences(&halves.second, pieces);
        while excess > 0
            && let Some(longest) = pieces.iter_mut().max_by_key(|piece| piece.tokens.len())
        {
            longest.tokens.end -= 1;
            excess -= 1;
        }
        first
    }

    fn is_same_document(&self, one: &Segment, other: &Segment) -> bool {
        let shard = &self.corpus.shards()[usize::from(one.shard)];
        one.shard == other.shard && shard.document_of(one.tokens().start) == shard.document_of(other.tokens().start)
    }

    /// Where a segment may part, in tokens from its beginning: at the ends of its sentences, or in its middle.
    fn places(&self, segment: &Segment, places: &mut Vec<usize>) {
        let shard = &self.corpus.shards()[usize::from(segment.shard)];
        let Range { start, end } = segment.tokens();
        places.clear();
        let ends = (shard.sentence_of(start)..shard.sentences()).map(|sentence| shard.sentence_end(sentence));
        places.extend(ends.take_while(|&at| (start..end).contains(&at)).map(|at| at - start));
        if places.is_empty() {
            places.push((end - start).div_ceil(2));
        }
    }

    /// Appends the sentences that a piece consists of.
    fn sentences(&self, piece: &Piece, sentences: &mut Vec<Piece>) {
        let Piece { shard: number, tokens } = piece;
        let shard = &self.corpus.shards()[usize::from(*number)];
        let mut start = tokens.start;
        for sentence in shard.sentence_of(start)..shard.sentences() {
            let end = shard.sentence_end(sentence).min(tokens.end);
            if start >= end {
                break;
            }
            sentences.push(Piece { shard: *number, tokens: start..end });
            start = end;
        }
    }

    fn append(&self, piece: &Piece, row: &mut Row) -> Result<(), DataError> {
        let shard = &self.corpus.shards()[usize::from(piece.shard)];
        let from = row.ids.len();
        shard.ids(piece.tokens.clone(), &mut row.ids);
        // Mapped bytes may have changed since they were written; an id that the model does not have would end it.
        let vocabulary = self.vocabulary().size();
        match row.ids[from..].iter().find(|&&id| id as usize >= vocabulary) {
            None => Ok(()),
            Some(&id) => Err(CorpusError::IdBeyondVocabulary { path: shard.path().to_owned(), id, vocabulary }.into()),
        }
    }
}

impl Segment {
    /// The first `tokens` of it.
    fn until(&self, tokens: usize) -> Piece {
        Piece { shard: self.shard, tokens: self.tokens().start..self.tokens().start + tokens }
    }

    /// What is left after the first `tokens`.
    fn from(&self, tokens: usize) -> Piece {
        Piece { shard: self.shard, tokens: self.tokens().start + tokens..self.tokens().end }
    }
}
