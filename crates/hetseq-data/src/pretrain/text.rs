//! Samples that are made of text as they are needed: cut once, paired and masked anew in every epoch.
//!
//! A sample is a segment of a document ([`segments`](super::segments)). In an epoch it is parted in two and may have
//! exchanged its second half with another sample ([`pairs`](super::pairs)); then it is masked ([`mask`](crate::mask)).
//! All of it is a pure function of the corpus, the config and the keys of the epoch.
//!
//! The cost of a sample is the width that its class is padded to: an upper bound, the same in every epoch, and
//! seldom more than a dozen tokens above what is there.

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use hetseq_random::Key;

use super::batch::PretrainBatch;
use super::config::PretrainConfig;
use super::pairs::{GROUP, Side, group, heads, pair_up};
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
    /// The group of a sample, and where sentences end within each of it.
    group: Vec<(u32, Segment)>,
    places: [Vec<usize>; GROUP],
    masked: Vec<Masked>,
}

/// Some tokens of a shard.
#[derive(Debug)]
struct Piece {
    shard: u16,
    tokens: Range<usize>,
}

/// Whom a sample may exchange with.
#[derive(Debug)]
struct Partner {
    id: u32,
    segment: Segment,
    /// Where the sample parts, and where its partner does.
    places: [usize; 2],
    /// How much of a second half is used at most.
    most: usize,
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
        blake3::hash(format!("{} {cut}", self.corpus.fingerprint()).as_bytes()).to_hex()[..16].to_owned()
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
        if self.config.next_sentence {
            let halves = self.halves(id, own, class, key, desk);
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

        mask(&mut row.ids, key(id).name("mask"), &self.config.masking, self.vocabulary(), &mut desk.masked);
        row.masked_positions.clear();
        row.masked_positions.extend(desk.masked.iter().map(|masked| masked.position));
        row.masked_ids.clear();
        row.masked_ids.extend(desk.masked.iter().map(|masked| masked.id));
        Ok(())
    }

    /// Where a sample parts, and whether it exchanges its second half with its partner's. Both find the same.
    fn halves(&self, id: u32, own: Segment, class: &Class, key: &dyn Fn(u32) -> Key, desk: &mut Desk) -> Halves {
        let Some(Partner { id: other_id, segment: other, places: [own_place, other_place], most }) =
            self.partner(id, class, key, desk)
        else {
            let places = &mut desk.places[0];
            self.places(&own, places);
            let choice = key(id).name("part").below(0, places.len().max(1) as u64) as usize;
            let place = places.get(choice).copied().unwrap_or(usize::from(own.length).div_ceil(2));
            return Halves { first: own.until(place), second: own.from(place), is_exchanged: false };
        };
        let coin = key(id.min(other_id)).name("coin").unit(0);
        let is_exchanged = f64::from(coin) < heads(class.same_document) && !self.is_same_document(&own, &other);
        let second = if is_exchanged { other.from(other_place) } else { own.from(own_place) };
        Halves { first: own.until(own_place), second: second.cut(most), is_exchanged }
    }

    /// Finds whom a sample may exchange with in this epoch, unless it is left over.
    fn partner(&self, id: u32, class: &Class, key: &dyn Fn(u32) -> Key, desk: &mut Desk) -> Option<Partner> {
        let epoch = key(0).name("pairs").index(u64::from(class.samples.start));
        let Desk { group: members, places, .. } = desk;
        members.clear();
        members.extend(
            group(id, class.samples.clone(), epoch).filter_map(|other| Some((other, self.segments.get(other)?))),
        );
        for ((_, segment), places) in members.iter().zip(&mut *places) {
            self.places(segment, places);
        }
        let sides: [Side<'_>; GROUP] = std::array::from_fn(|at| Side {
            places: &places[at],
            length: members.get(at).map_or(0, |(_, segment)| segment.length.into()),
            ends_sentence: !class.seams.ends_inside,
        });
        let lowest = members.iter().map(|&(id, _)| id).min()?;
        let pairs = pair_up(&sides[..members.len()], &class.lengths, key(lowest).name("pair"));
        pairs.into_iter().flatten().find_map(|pair| {
            let own = pair.members.iter().position(|&at| members[at].0 == id)?;
            let (id, segment) = members[pair.members[1 - own]];
            Some(Partner { id, segment, places: [pair.places[own], pair.places[1 - own]], most: pair.most })
        })
    }

    fn is_same_document(&self, one: &Segment, other: &Segment) -> bool {
        let shard = &self.corpus.shards()[usize::from(one.shard)];
        one.shard == other.shard && shard.document_of(one.tokens().start) == shard.document_of(other.tokens().start)
    }

    /// Where sentences end within a segment, in tokens from its beginning.
    fn places(&self, segment: &Segment, places: &mut Vec<usize>) {
        let shard = &self.corpus.shards()[usize::from(segment.shard)];
        let Range { start, end } = segment.tokens();
        places.clear();
        let ends = (shard.sentence_of(start)..shard.sentences()).map(|sentence| shard.sentence_end(sentence));
        places.extend(ends.take_while(|&at| (start..end).contains(&at)).map(|at| at - start));
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

impl Piece {
    /// The first `most` tokens of it.
    fn cut(mut self, most: usize) -> Self {
        self.tokens.end = self.tokens.start + self.tokens.len().min(most);
        self
    }
}
