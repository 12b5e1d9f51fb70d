//! Many words or texts as tokens, encoded in parallel. Used by both kinds of samples.

use std::ops::Range;

use rayon::prelude::*;

use crate::error::DataError;
use crate::tokenize::Tokenizer;

/// Texts per piece of parallel work: each has its own cache of encoded words.
const CHUNK_TEXTS: usize = 4096;

/// The tokens of all texts, one after the other. A vector per text would take several times the
/// memory.
#[derive(Debug, Default)]
pub(super) struct EncodedTexts {
    pub(super) tokens: Vec<u32>,
    /// The number of tokens up to the end of each text.
    pub(super) ends: Vec<usize>,
}

impl EncodedTexts {
    /// Encodes texts `0..count`, without special tokens. `adjust` gets the tokens of a text and may
    /// change them.
    ///
    /// The result does not depend on the number of cores.
    pub(super) fn new<'a>(
        count: usize,
        text: impl Fn(usize) -> &'a str + Sync,
        tokenizer: &Tokenizer,
        adjust: impl Fn(&mut Vec<u32>) + Sync,
    ) -> Result<Self, DataError> {
        let encode = |first: usize| {
            let mut chunk = EncodedTexts::default();
            let (mut encoder, mut ids) = (tokenizer.plain_encoder(), Vec::new());
            for at in first..(first + CHUNK_TEXTS).min(count) {
                ids.clear();
                encoder.encode(text(at), &mut ids)?;
                adjust(&mut ids);
                chunk.tokens.extend_from_slice(&ids);
                chunk.ends.push(chunk.tokens.len());
            }
            Ok(chunk)
        };
        let starts = (0..count.div_ceil(CHUNK_TEXTS)).into_par_iter().map(|chunk| chunk * CHUNK_TEXTS);
        let chunks: Vec<Result<EncodedTexts, DataError>> = starts.map(encode).collect();
        let mut all = EncodedTexts::default();
        for chunk in chunks {
            let (chunk, before) = (chunk?, all.tokens.len());
            all.tokens.extend_from_slice(&chunk.tokens);
            all.ends.extend(chunk.ends.iter().map(|end| before + end));
        }
        Ok(all)
    }

    /// Where the tokens of a text begin.
    pub(super) fn start(&self, text: usize) -> usize {
        text.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0)
    }

    /// Where the tokens of several texts are.
    pub(super) fn range(&self, texts: Range<usize>) -> Range<usize> {
        self.start(texts.start)..self.start(texts.end)
    }

    /// Adds all tokens and ends to a fingerprint.
    pub(super) fn hash(&self, hasher: &mut blake3::Hasher) {
        hasher.update(&(self.ends.len() as u64).to_le_bytes());
        self.ends.iter().for_each(|&end| {
            hasher.update(&(end as u64).to_le_bytes());
        });
        self.tokens.iter().for_each(|id| {
            hasher.update(&id.to_le_bytes());
        });
    }
}
