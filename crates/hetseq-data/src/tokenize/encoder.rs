//! Encodes sentences for BERT, with a cache. Called by [`prep`](crate::prep) and
//! [`finetune`](crate::finetune).

use std::collections::HashMap;

use tokenizers::{Model, ModelWrapper};

use super::words::{BertWords, UNKNOWN_CHUNK, chunks, unescape};
use super::{Tokenizer, failed};
use crate::error::DataError;

/// At this size the cache is cleared, to bound its memory. Frequent entries soon return.
const MAX_CACHED_CHUNKS: usize = 1 << 18;

/// Cache of the ids of encoded chunks, which are text without white space.
#[derive(Default)]
pub(super) struct ChunkCache {
    /// The range of a chunk's ids in `ids`.
    ranges: HashMap<Box<str>, (u32, u32)>,
    ids: Vec<u32>,
}

impl ChunkCache {
    /// Appends the ids of a chunk to `ids`. Returns false if it is not in the cache.
    pub(super) fn append_to(&self, chunk: &str, ids: &mut Vec<u32>) -> bool {
        let Some(&(start, end)) = self.ranges.get(chunk) else { return false };
        ids.extend_from_slice(&self.ids[start as usize..end as usize]);
        true
    }

    pub(super) fn insert(&mut self, chunk: &str, ids: &[u32]) {
        if self.ranges.len() >= MAX_CACHED_CHUNKS {
            self.ranges.clear();
            self.ids.clear();
        }
        let range = (self.ids.len() as u32, (self.ids.len() + ids.len()) as u32);
        self.ids.extend_from_slice(ids);
        self.ranges.insert(chunk.into(), range);
    }
}

/// Encodes sentences into the ids of `BertTokenizerFast`, with two exceptions: `<unk>`, which
/// corpora write for a removed word, becomes the unknown token, and WikiText's `@-@`, `@,@` and
/// `@.@` become `-`, `,` and `.`. [`Tokenizer::plain_encoder`] makes no exceptions.
pub struct TextEncoder<'a> {
    tokenizer: &'a Tokenizer,
    decodes_escapes: bool,
    cache: ChunkCache,
    buffer: String,
}

impl<'a> TextEncoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, decodes_escapes: bool) -> Self {
        TextEncoder { tokenizer, decodes_escapes, cache: ChunkCache::default(), buffer: String::new() }
    }

    /// Appends the ids of a sentence, without special tokens.
    pub fn encode(&mut self, sentence: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
        match (self.tokenizer.words, self.tokenizer.inner.get_model()) {
            (Some(words), ModelWrapper::WordPiece(model)) => {
                chunks(sentence).try_for_each(|chunk| self.encode_chunk(chunk, &words, model, ids))
            }
            _ => {
                let encoding = self.tokenizer.inner.encode_fast(sentence, false).map_err(failed)?;
                ids.extend_from_slice(encoding.get_ids());
                Ok(())
            }
        }
    }

    fn encode_chunk(
        &mut self,
        chunk: &str,
        words: &BertWords,
        model: &impl Model,
        ids: &mut Vec<u32>,
    ) -> Result<(), DataError> {
        if self.cache.append_to(chunk, ids) {
            return Ok(());
        }
        let start = ids.len();
        if self.decodes_escapes && chunk == UNKNOWN_CHUNK {
            ids.push(self.tokenizer.vocabulary().special.unk);
        } else {
            let mut result = Ok(());
            let text = if self.decodes_escapes { unescape(chunk) } else { chunk };
            words.for_each(text, &mut self.buffer, |word| match model.tokenize(word) {
                Ok(pieces) => ids.extend(pieces.iter().map(|piece| piece.id)),
                Err(reason) => result = Err(failed(reason)),
            });
            result?;
        }
        self.cache.insert(chunk, &ids[start..]);
        Ok(())
    }
}
