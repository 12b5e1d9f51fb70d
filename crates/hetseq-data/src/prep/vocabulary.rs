//! The tokenizer of a preparation: trained, given, or there already.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::Watch;
use super::chunks::{Chunk, ChunkLimits, for_each_chunk};
use super::settings::{PrepSettings, VocabularySource};
use crate::error::DataError;
use crate::source::corpus::CorpusSplit;
use crate::source::text::{Document, Documents, TextFile};
use crate::tokenize::{BertWords, TOKENIZER_FILE, Tokenizer, TrainOptions, WordCounts, train};

/// Different words that are counted; beyond, the rarer half is forgotten. About 200 MB.
pub(super) const MOST_WORDS: usize = 1 << 21;

/// None if it was stopped.
pub(super) fn obtain(
    settings: &PrepSettings,
    files: &[TextFile],
    watch: &dyn Watch,
) -> Result<Option<Tokenizer>, DataError> {
    let written = settings.output.join(TOKENIZER_FILE);
    if written.exists() {
        return Tokenizer::read_json(&written).map(Some);
    }
    let tokenizer = match &settings.vocabulary {
        VocabularySource::Vocabulary { path, cased } => Tokenizer::read_vocabulary(path, *cased)?,
        VocabularySource::Tokenizer { path } => Tokenizer::read_json(path)?,
        VocabularySource::Trained { size, cased } => {
            let Some(words) = count(settings, files, &BertWords::new(*cased), watch)? else { return Ok(None) };
            watch.begin("training the vocabulary", 0);
            Tokenizer::from_tokens(&train(&words.into_sorted(), &TrainOptions::of_size(*size)), *cased)?
        }
    };
    tokenizer.write(&settings.output)?;
    Ok(Some(tokenizer))
}

/// Counts the words of the training documents; held-out text must not shape the vocabulary.
fn count(
    settings: &PrepSettings,
    files: &[TextFile],
    words: &BertWords,
    watch: &dyn Watch,
) -> Result<Option<WordCounts>, DataError> {
    watch.begin("counting words", files.iter().map(|file| file.bytes).sum());
    let read = Arc::new(AtomicU64::new(0));
    let documents = Documents::new(files.to_vec(), settings.sentences, read.clone());
    let work = |chunk: &Chunk<Document>| {
        let (mut counts, mut buffer) = (WordCounts::default(), String::new());
        for (number, document) in (chunk.first..).zip(&chunk.items) {
            if settings.split(0, number) == CorpusSplit::Train {
                counts.count(words, &document.text, &mut buffer);
            }
        }
        Ok(counts)
    };
    let mut total = WordCounts::default();
    let limits = ChunkLimits { from: 0, part_bytes: usize::MAX };
    let done = for_each_chunk(documents, limits, &read, watch, work, |_, counts| {
        total.add(counts, MOST_WORDS);
        Ok(())
    })?;
    Ok(done.then_some(total))
}
