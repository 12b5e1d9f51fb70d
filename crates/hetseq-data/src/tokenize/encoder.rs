//! Sentence after sentence to ids.

use std::collections::HashMap;

use tokenizers::{Model, ModelWrapper};

use super::words::{BertWords, UNKNOWN_RUN, runs, unescape};
use super::{Tokenizer, failed};
use crate::error::DataError;

/// When so many runs of text are remembered, all are forgotten: it bounds the memory, and the frequent ones soon return.
const REMEMBERED_RUNS: usize = 1 << 18;

/// The ids of runs of text that were seen before.
#[derive(Default)]
pub(super) struct SeenRuns {
    /// Where the ids of a run are in `ids`.
    places: HashMap<Box<str>, (u32, u32)>,
    ids: Vec<u32>,
}

impl SeenRuns {
    /// Appends the ids of a run, if it was seen.
    pub(super) fn recall(&self, run: &str, ids: &mut Vec<u32>) -> bool {
        let Some(&(start, end)) = self.places.get(run) else { return false };
        ids.extend_from_slice(&self.ids[start as usize..end as usize]);
        true
    }

    pub(super) fn remember(&mut self, run: &str, ids: &[u32]) {
        if self.places.len() >= REMEMBERED_RUNS {
            self.places.clear();
            self.ids.clear();
        }
        let place = (self.ids.len() as u32, (self.ids.len() + ids.len()) as u32);
        self.ids.extend_from_slice(ids);
        self.places.insert(run.into(), place);
    }
}

/// Gives the ids that `BertTokenizerFast` gives, with two readings of its own: `<unk>`, for which corpora leave out a
/// word, is the unknown token, and `@-@`, `@,@` and `@.@`, as WikiText writes them, are the characters they stand for.
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    seen: SeenRuns,
    buffer: String,
}

impl<'a> Encoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Encoder { tokenizer, seen: SeenRuns::default(), buffer: String::new() }
    }

    /// Appends the ids of a sentence, without special tokens around it.
    pub fn encode(&mut self, sentence: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
        match (self.tokenizer.words, self.tokenizer.inner.get_model()) {
            (Some(words), ModelWrapper::WordPiece(model)) => {
                runs(sentence).try_for_each(|run| self.encode_run(run, &words, model, ids))
            }
            _ => {
                let encoding = self.tokenizer.inner.encode_fast(sentence, false).map_err(failed)?;
                ids.extend_from_slice(encoding.get_ids());
                Ok(())
            }
        }
    }

    fn encode_run(
        &mut self,
        run: &str,
        words: &BertWords,
        model: &impl Model,
        ids: &mut Vec<u32>,
    ) -> Result<(), DataError> {
        if self.seen.recall(run, ids) {
            return Ok(());
        }
        let start = ids.len();
        if run == UNKNOWN_RUN {
            ids.push(self.tokenizer.vocabulary().special.unk);
        } else {
            let mut result = Ok(());
            words.each(unescape(run), &mut self.buffer, |word| match model.tokenize(word) {
                Ok(pieces) => ids.extend(pieces.iter().map(|piece| piece.id)),
                Err(reason) => result = Err(failed(reason)),
            });
            result?;
        }
        self.seen.remember(run, &ids[start..]);
        Ok(())
    }
}
