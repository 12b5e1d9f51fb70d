//! Encodes chunks of documents and writes each part of the input as shards. Called by
//! `bert::prepare`.

use std::sync::Arc;

use hetseq_random::Key;
use rayon::prelude::*;

use super::settings::{Hdf5Settings, PrepFormat, PrepSettings};
use crate::error::DataError;
use crate::mask::Masking;
use crate::prep::chunks::{Chunk, ChunkEnd};
use crate::prep::directory::{PrepPart, write_record};
use crate::pretrain::{PretrainConfig, TextSamples};
use crate::source::corpus::{CorpusSplit, Counts, ShardEntry, TextCorpus, TextCounts};
use crate::source::hdf5::Hdf5Rows;
use crate::source::text::Document;
use crate::source::tokens::{EncodedDocuments, ShardBuilder};
use crate::tokenize::Tokenizer;

/// Shorter documents are dropped: a sample has two segments of at least one token each.
const MIN_TOKENS: usize = 2;

/// The encoded documents of a chunk and their counts, by split.
pub(super) type EncodedChunk = [(EncodedDocuments, TextCounts); 2];

/// Encodes a chunk. Called in parallel.
pub(super) fn encode_chunk(
    settings: &PrepSettings,
    tokenizer: &Tokenizer,
    group: usize,
    chunk: &Chunk<Document>,
) -> Result<EncodedChunk, DataError> {
    let mut encoded = EncodedChunk::default();
    let mut encoder = tokenizer.encoder();
    let unknown_id = tokenizer.vocabulary().special.unk;
    for (number, document) in (chunk.first..).zip(&chunk.items) {
        let (documents, counts) = &mut encoded[settings.split(group, number) as usize];
        let (ids_before, sentences_before) = (documents.ids.len(), documents.sentence_ends.len());
        let mut result = Ok(());
        document.sentences(|sentence| {
            let before = documents.ids.len();
            if result.is_ok() {
                result = encoder.encode(sentence, &mut documents.ids);
            }
            if documents.ids.len() > before {
                documents.sentence_ends.push(documents.ids.len() as u32);
            }
        });
        result?;
        let tokens = documents.ids.len() - ids_before;
        if tokens < MIN_TOKENS {
            documents.ids.truncate(ids_before);
            documents.sentence_ends.truncate(sentences_before);
            continue;
        }
        documents.document_ends.push(documents.sentence_ends.len() as u32);
        counts.documents += 1;
        counts.sentences += (documents.sentence_ends.len() - sentences_before) as u64;
        counts.tokens += tokens as u64;
        counts.unknown += documents.ids[ids_before..].iter().filter(|&&id| id == unknown_id).count() as u64;
    }
    Ok(encoded)
}

/// Collects the chunks of a part and writes its shards.
pub(super) struct BertPartWriter<'a> {
    settings: &'a PrepSettings,
    tokenizer: &'a Tokenizer,
    group: usize,
    /// The number of the current part.
    part: usize,
    builders: [ShardBuilder; 2],
    counts: [TextCounts; 2],
}

impl<'a> BertPartWriter<'a> {
    pub(super) fn new(settings: &'a PrepSettings, tokenizer: &'a Tokenizer, group: usize, part: usize) -> Self {
        let (builders, counts) = empty_part(tokenizer);
        BertPartWriter { settings, tokenizer, group, part, builders, counts }
    }

    /// Adds the next chunk. If it is the last one of a part, writes and returns the part.
    pub(super) fn add(
        &mut self,
        end: ChunkEnd,
        encoded: EncodedChunk,
    ) -> Result<Option<PrepPart<TextCounts>>, DataError> {
        for (at, (documents, counts)) in encoded.iter().enumerate() {
            self.builders[at].append(documents);
            self.counts[at].add(counts);
        }
        if !end.ends_part {
            return Ok(None);
        }
        let (builders, counts) = empty_part(self.tokenizer);
        let builders = std::mem::replace(&mut self.builders, builders);
        let [train, valid] = std::mem::replace(&mut self.counts, counts);
        let mut shards = Vec::new();
        for (split, builder) in CorpusSplit::ALL.into_iter().zip(builders).filter(|(_, builder)| !builder.is_empty()) {
            match &self.settings.format {
                PrepFormat::Compact => shards.push(self.write_compact(split, &builder)?),
                PrepFormat::Hdf5(hdf5) => shards.extend(self.write_hdf5(split, builder, hdf5)?),
            }
        }
        let (group, next_item, ends_group) = (self.group, end.next_item, end.ends_text);
        let part = PrepPart { group, next_item, ends_group, train, valid, shards };
        write_record(&self.settings.output, self.part, &part)?;
        self.part += 1;
        Ok(Some(part))
    }

    fn write_compact(&self, split: CorpusSplit, builder: &ShardBuilder) -> Result<ShardEntry, DataError> {
        let file = format!("{}-{:05}.tokens", split.name(), self.part);
        let bytes = builder.write(&self.settings.output.join(&file))?;
        Ok(ShardEntry { split, file, bytes, entries: builder.documents() as u64 })
    }

    /// Writes one file per pass over the part. Held-out text has a single pass.
    fn write_hdf5(
        &self,
        split: CorpusSplit,
        builder: ShardBuilder,
        hdf5: &Hdf5Settings,
    ) -> Result<Vec<ShardEntry>, DataError> {
        let corpus = Arc::new(TextCorpus::from_shard(builder.into_shard()?, self.tokenizer.vocabulary().clone()));
        let (passes, word) = match split {
            CorpusSplit::Train => (hdf5.dupe_factor, "training"),
            CorpusSplit::Valid => (1, "validation"),
        };
        let key = Key::root(self.settings.seed).name("masked").index(self.part as u64).index(split as u64);
        let write_pass = |pass: usize| {
            let key = key.index(pass as u64);
            let config = PretrainConfig {
                max_seq_length: hdf5.max_seq_length,
                short_seq_prob: hdf5.short_seq_prob,
                cut_seed: key.name("cut").bits64(0),
                masking: Masking {
                    max_predictions: Some(hdf5.max_predictions as u32),
                    whole_word: hdf5.whole_word,
                    ..Masking::default()
                },
                ..PretrainConfig::default()
            };
            let samples = TextSamples::new(corpus.clone(), &config)?;
            let mut order: Vec<u32> = (0..samples.len() as u32).collect();
            key.name("order").shuffle(&mut order);
            let mut rows = Hdf5Rows::new(hdf5.max_seq_length, hdf5.max_predictions);
            for id in order {
                rows.push(&samples.row(id, &|sample| key.index(u64::from(sample)))?);
            }
            let (file, entries) = (format!("{word}-{:05}-{pass:02}.hdf5", self.part), rows.len() as u64);
            let bytes = rows.write(&self.settings.output.join(&file))?;
            Ok(ShardEntry { split, file, bytes, entries })
        };
        (0..passes).into_par_iter().map(write_pass).collect()
    }
}

fn empty_part(tokenizer: &Tokenizer) -> ([ShardBuilder; 2], [TextCounts; 2]) {
    (CorpusSplit::ALL.map(|_| ShardBuilder::new(tokenizer.vocabulary().size())), Default::default())
}
