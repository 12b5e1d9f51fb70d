//! Sentence after sentence to ids.

use std::collections::HashMap;

use tokenizers::{Model, ModelWrapper};

use super::Tokenizer;
use super::words::{BertWords, UNKNOWN_RUN, runs, unescape};
use crate::error::{CorpusError, DataError};
use crate::tokenize::tokenizer::TOKENIZER_FILE;

/// When so many runs of text are remembered, all are forgotten: it bounds the memory, and the frequent ones soon return.
const REMEMBERED_RUNS: usize = 1 << 18;

/// Gives the ids that `BertTokenizerFast` gives, with two readings of its own: `<unk>`, for which corpora leave out a
/// word, is the unknown token, and `@-@`, `@,@` and `@.@`, as WikiText writes them, are the characters they stand for.
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    /// Where the ids of a run are in `ids`.
    remembered: HashMap<Box<str>, (u32, u32)>,
    ids: Vec<u32>,
    buffer: String,
}

impl<'a> Encoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Encoder { tokenizer, remembered: HashMap::new(), ids: Vec::new(), buffer: String::new() }
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
        if let Some(&(start, end)) = self.remembered.get(run) {
            ids.extend_from_slice(&self.ids[start as usize..end as usize]);
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
        if self.remembered.len() >= REMEMBERED_RUNS {
            self.remembered.clear();
            self.ids.clear();
        }
        let place = (self.ids.len() as u32, (self.ids.len() + ids.len() - start) as u32);
        self.ids.extend_from_slice(&ids[start..]);
        self.remembered.insert(run.into(), place);
        Ok(())
    }
}

fn failed(reason: tokenizers::Error) -> DataError {
    CorpusError::BadTokenizer { path: TOKENIZER_FILE.into(), problem: reason.to_string() }.into()
}
