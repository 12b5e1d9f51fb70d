//! The tokenizer of a BERT preparation: trained, given, or written by an interrupted preparation.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::settings::{PrepSettings, VocabularySource};
use crate::error::DataError;
use crate::prep::PrepObserver;
use crate::prep::chunks::{Chunk, ChunkLimits, for_each_chunk};
use crate::source::corpus::CorpusSplit;
use crate::source::text::{Document, Documents, TextFile};
use crate::tokenize::{BertWords, TOKENIZER_FILE, Tokenizer, TrainOptions, WordCounts, train_word_piece};

/// The largest number of distinct words to count, about 200 MB. Above it, the rarer half is
/// dropped.
pub(in crate::prep) const MAX_WORDS: usize = 1 << 21;

/// Returns the tokenizer and writes it to the output directory. None if the observer stopped it.
pub(super) fn obtain(
    settings: &PrepSettings,
    files: &[TextFile],
    observer: &dyn PrepObserver,
) -> Result<Option<Tokenizer>, DataError> {
    let written = settings.output.join(TOKENIZER_FILE);
    if written.exists() {
        return Tokenizer::read_json(&written).map(Some);
    }
    let tokenizer = match &settings.vocabulary {
        VocabularySource::Vocabulary { path, cased } => Tokenizer::read_vocabulary(path, *cased)?,
        VocabularySource::Tokenizer { path } => Tokenizer::read_json(path)?,
        VocabularySource::Trained { size, cased } => {
            let Some(words) = count(settings, files, &BertWords::new(*cased), observer)? else { return Ok(None) };
            observer.begin("training the vocabulary", 0);
            Tokenizer::from_tokens(
                &train_word_piece(&words.into_sorted(), &TrainOptions::for_word_piece(*size)),
                *cased,
            )?
        }
    };
    tokenizer.write(&settings.output)?;
    Ok(Some(tokenizer))
}

/// Counts the words of the training documents; held-out text must not influence the vocabulary.
fn count(
    settings: &PrepSettings,
    files: &[TextFile],
    words: &BertWords,
    observer: &dyn PrepObserver,
) -> Result<Option<WordCounts>, DataError> {
    observer.begin("counting words", files.iter().map(|file| file.bytes).sum());
    let read = Arc::new(AtomicU64::new(0));
    let documents = Documents::new(files.to_vec(), settings.sentences, read.clone()).with_field(&settings.field);
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
    let done = for_each_chunk(documents, limits, &read, observer, work, |_, counts| {
        total.add(counts, MAX_WORDS);
        Ok(())
    })?;
    Ok(done.then_some(total))
}
