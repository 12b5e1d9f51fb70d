//! Encodes chunks of line pairs and writes each part of the input as a shard. Called by
//! `translate::prepare`.

use super::settings::TranslateSettings;
use crate::error::DataError;
use crate::prep::chunks::{Chunk, ChunkEnd};
use crate::prep::directory::{PrepPart, write_record};
use crate::source::corpus::{CorpusSplit, Counts, ShardEntry};
use crate::source::parallel_corpus::{DropReason, PairCounts, SideCounts, write_references};
use crate::source::text::{LinePair, TextFile};
use crate::source::tokens::{EncodedDocuments, ShardBuilder};
use crate::translate::TranslateTokenizer;

/// The encoded pairs of a chunk, and their counts.
#[derive(Debug, Default)]
pub(super) struct EncodedPairs {
    documents: EncodedDocuments,
    counts: PairCounts,
    references: Vec<String>,
}

/// Encodes a chunk. Called in parallel.
pub(super) fn encode_chunk(
    settings: &TranslateSettings,
    tokenizer: &TranslateTokenizer,
    split: CorpusSplit,
    files: &[[TextFile; 2]],
    chunk: &Chunk<LinePair>,
) -> Result<EncodedPairs, DataError> {
    let mut encoded = EncodedPairs::default();
    let [mut source, mut target] = tokenizer.encoders();
    let unknown = [tokenizer.source_special().unk, tokenizer.special().unk];
    for pair in &chunk.items {
        let EncodedPairs { documents, counts, references } = &mut encoded;
        counts.read += 1;
        let (ids, reason) = if pair.is_too_long {
            (Default::default(), Some(DropReason::TooLong))
        } else {
            let ids = [source.encode(&pair.lines[0])?, target.encode(&pair.lines[1])?];
            let lengths = [ids[0].len() - 1, ids[1].len() - 1];
            (ids, settings.drop_reason(split, lengths))
        };
        if let Some(reason) = reason {
            let file = files.get(pair.file).map_or("", |pair| &pair[0].name);
            counts.drop_pair(reason, file, pair.line);
            continue;
        }
        counts.pairs += 1;
        for (side, ids) in ids.iter().enumerate() {
            documents.ids.extend_from_slice(ids);
            documents.sentence_ends.push(documents.ids.len() as u32);
            let counts = if side == 0 { &mut counts.source } else { &mut counts.target };
            count_side(counts, ids, unknown[side], &pair.lines[side]);
        }
        documents.document_ends.push(documents.sentence_ends.len() as u32);
        if split == CorpusSplit::Valid {
            references.push(pair.lines[1].clone());
        }
    }
    Ok(encoded)
}

fn count_side(counts: &mut SideCounts, ids: &[u32], unknown: u32, line: &str) {
    counts.tokens += ids.len() as u64;
    counts.unknown += ids.iter().filter(|&&id| id == unknown).count() as u64;
    counts.words += line.split_whitespace().count() as u64;
    counts.longest = counts.longest.max(ids.len() as u64);
}

/// Collects the chunks of a part and writes its shard; for held-out text also the references.
pub(super) struct PairPartWriter<'a> {
    settings: &'a TranslateSettings,
    vocabulary: usize,
    split: CorpusSplit,
    /// The number of the current part.
    part: usize,
    builder: ShardBuilder,
    counts: PairCounts,
    references: Vec<String>,
}

impl<'a> PairPartWriter<'a> {
    pub(super) fn new(
        settings: &'a TranslateSettings,
        tokenizer: &TranslateTokenizer,
        split: CorpusSplit,
        part: usize,
    ) -> Self {
        let vocabulary = tokenizer.source_vocabulary().max(tokenizer.target_vocabulary());
        let (builder, counts, references) = (ShardBuilder::new(vocabulary), PairCounts::default(), Vec::new());
        PairPartWriter { settings, vocabulary, split, part, builder, counts, references }
    }

    /// Adds the next chunk. If it is the last one of a part, writes and returns the part.
    pub(super) fn add(
        &mut self,
        end: ChunkEnd,
        encoded: EncodedPairs,
    ) -> Result<Option<PrepPart<PairCounts>>, DataError> {
        self.builder.append(&encoded.documents);
        self.counts.add(&encoded.counts);
        self.references.extend(encoded.references);
        if !end.ends_part {
            return Ok(None);
        }
        let builder = std::mem::replace(&mut self.builder, ShardBuilder::new(self.vocabulary));
        let mut counts = std::mem::take(&mut self.counts);
        let references = std::mem::take(&mut self.references);
        let (output, name) = (&self.settings.output, format!("{}-{:05}", self.split.name(), self.part));
        let mut shards = Vec::new();
        if !builder.is_empty() {
            if !references.is_empty() {
                counts.references.push(write_references(output, format!("{name}.txt"), &references)?);
            }
            let file = format!("{name}.tokens");
            let (bytes, entries) = (builder.write(&output.join(&file))?, builder.documents() as u64);
            shards.push(ShardEntry { split: self.split, file, bytes, entries });
        }
        let (train, valid) = match self.split {
            CorpusSplit::Train => (counts, PairCounts::default()),
            CorpusSplit::Valid => (PairCounts::default(), counts),
        };
        let (group, next_item, ends_group) = (self.split as usize, end.next_item, end.ends_text);
        let part = PrepPart { group, next_item, ends_group, train, valid, shards };
        write_record(output, self.part, &part)?;
        self.part += 1;
        Ok(Some(part))
    }
}
