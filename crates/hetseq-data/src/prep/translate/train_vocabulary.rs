//! The tokenizers of a translation preparation: trained, given, or written by an interrupted
//! preparation.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::settings::{SubwordModel, SubwordSource, TranslateSettings};
use crate::error::{CorpusError, DataError};
use crate::prep::PrepObserver;
use crate::prep::bert::train_vocabulary::MAX_WORDS;
use crate::prep::chunks::{Chunk, ChunkLimits, for_each_chunk};
use crate::source::bytes::write_atomic;
use crate::source::text::{LinePair, ParallelLines, TextFile};
use crate::tokenize::{Subwords, WordCounts, for_each_pre_token};
use crate::translate::TranslateTokenizer;

/// Returns the tokenizers and writes them to the output directory. None if the observer stopped it.
pub(super) fn obtain(
    settings: &TranslateSettings,
    files: &[[TextFile; 2]],
    observer: &dyn PrepObserver,
) -> Result<Option<TranslateTokenizer>, DataError> {
    if TranslateTokenizer::is_complete(&settings.output) {
        return TranslateTokenizer::read(&settings.output).map(Some);
    }
    let tokenizer = match &settings.vocabulary {
        SubwordSource::Given { path } if path.is_dir() => TranslateTokenizer::read(path)?,
        SubwordSource::Given { path } => TranslateTokenizer::joint(Subwords::read(path)?),
        SubwordSource::Trained { size, model, separate } => {
            let Some(counts) = count(settings, *separate, files, observer)? else { return Ok(None) };
            observer.begin("training the vocabulary", 0);
            let mut sides = Vec::new();
            for counts in counts {
                let words = counts.into_sorted();
                sides.push(match model {
                    SubwordModel::Bpe => Subwords::train_bpe(&words, *size)?,
                    SubwordModel::Unigram => Subwords::train_unigram(&words, *size)?,
                });
            }
            let target = sides.pop();
            match (sides.pop(), target) {
                (Some(source), Some(target)) => TranslateTokenizer::separate(source, target),
                (None, Some(both)) => TranslateTokenizer::joint(both),
                _ => return Err(CorpusError::NoText { inputs: settings.source.clone() }.into()),
            }
        }
    };
    let tokenizer = tokenizer.with_languages(settings.languages.clone());
    for (name, content) in tokenizer.files(settings.max_length) {
        write_atomic(&settings.output.join(name), |file| file.write_all(&content))?;
    }
    Ok(Some(tokenizer))
}

/// Counts the words of both sides together, or of each side. Skips pairs that are dropped with any
/// vocabulary: those with an empty side, or with more words than a side may have tokens.
fn count(
    settings: &TranslateSettings,
    separate: bool,
    files: &[[TextFile; 2]],
    observer: &dyn PrepObserver,
) -> Result<Option<Vec<WordCounts>>, DataError> {
    observer.begin("counting words", super::bytes(files));
    let read = Arc::new(AtomicU64::new(0));
    let lines = ParallelLines::new(files.to_vec(), read.clone());
    let vocabularies = if separate { 2 } else { 1 };
    let work = |chunk: &Chunk<LinePair>| {
        let (mut counts, mut buffer) = (vec![WordCounts::default(); vocabularies], String::new());
        for pair in chunk.items.iter().filter(|pair| !is_always_dropped(pair, settings.max_length)) {
            for (side, line) in pair.lines.iter().enumerate() {
                let counts = &mut counts[side.min(vocabularies - 1)];
                for_each_pre_token(line, &mut buffer, |token| counts.count_word(token));
            }
        }
        Ok(counts)
    };
    let mut total = vec![WordCounts::default(); vocabularies];
    let limits = ChunkLimits { from: 0, part_bytes: usize::MAX };
    let done = for_each_chunk(lines, limits, &read, observer, work, |_, counts| {
        total.iter_mut().zip(counts).for_each(|(total, counts)| total.add(counts, MAX_WORDS));
        Ok(())
    })?;
    Ok(done.then_some(total))
}

/// Whether a pair is dropped with any vocabulary. A word is at least one token.
fn is_always_dropped(pair: &LinePair, max_length: usize) -> bool {
    let words = |line: &String| line.split_whitespace().take(max_length + 1).count();
    pair.is_too_long || pair.lines.iter().any(|line| !(1..=max_length).contains(&words(line)))
}
