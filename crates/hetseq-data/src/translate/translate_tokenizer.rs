//! The tokenizers of source and target: one for both sides, or one per side. Read from a prepared
//! directory or a checkpoint; used by preparation, the translation task and generation.

use std::path::Path;

use fs_err as fs;
use serde_json::json;

use crate::error::{CorpusError, DataError};
use crate::tokenize::{CONFIG_FILE, SubwordEncoder, SubwordSpecialTokens, Subwords, TOKENIZER_FILE};

/// File names if each side has its own vocabulary.
pub const SOURCE_TOKENIZER_FILE: &str = "source_tokenizer.json";
pub const TARGET_TOKENIZER_FILE: &str = "target_tokenizer.json";

/// Turns lines of both languages into ids, and ids back into lines.
#[derive(Debug, Clone)]
pub struct TranslateTokenizer {
    /// None if the target's tokenizer is used for both sides.
    source: Option<Subwords>,
    target: Subwords,
    /// The names of the source and target languages, if given.
    languages: [Option<String>; 2],
}

/// Keys in `tokenizer_config.json`.
const LANGUAGE_KEYS: [&str; 2] = ["source_lang", "target_lang"];

impl TranslateTokenizer {
    /// One tokenizer for both sides.
    pub fn joint(both: Subwords) -> Self {
        TranslateTokenizer { source: None, target: both, languages: [None, None] }
    }

    /// One tokenizer per side.
    pub fn separate(source: Subwords, target: Subwords) -> Self {
        TranslateTokenizer { source: Some(source), target, languages: [None, None] }
    }

    pub fn with_languages(self, languages: [Option<String>; 2]) -> Self {
        TranslateTokenizer { languages, ..self }
    }

    /// Reads `tokenizer.json`, or `source_tokenizer.json` and `target_tokenizer.json`, from a
    /// directory.
    pub fn read(dir: &Path) -> Result<Self, DataError> {
        let [joint, source, target] =
            [TOKENIZER_FILE, SOURCE_TOKENIZER_FILE, TARGET_TOKENIZER_FILE].map(|file| dir.join(file));
        let tokenizer = if source.exists() || target.exists() {
            Self::separate(Subwords::read(&source)?, Subwords::read(&target)?)
        } else if joint.exists() {
            Self::joint(Subwords::read(&joint)?)
        } else {
            let problem =
                format!("there is neither {TOKENIZER_FILE}, nor {SOURCE_TOKENIZER_FILE} and {TARGET_TOKENIZER_FILE}");
            return Err(CorpusError::BadTokenizer { path: dir.to_owned(), problem }.into());
        };
        Ok(tokenizer.with_languages(read_languages(&dir.join(CONFIG_FILE))?))
    }

    /// Whether a directory holds all files. Assumes that they were written in the order of
    /// [`TranslateTokenizer::files`].
    pub fn is_complete(dir: &Path) -> bool {
        [TOKENIZER_FILE, SOURCE_TOKENIZER_FILE].iter().any(|last| dir.join(last).exists())
    }

    /// The ids of a line, with `</s>` at the end.
    pub fn encode_source(&self, line: &str) -> Result<Vec<u32>, DataError> {
        self.source_side().encode(line)
    }

    /// The ids of a line, with `</s>` at the end.
    pub fn encode_target(&self, line: &str) -> Result<Vec<u32>, DataError> {
        self.target.encode(line)
    }

    /// Encoders of source and target for many lines; they cache words.
    pub fn encoders(&self) -> [SubwordEncoder<'_>; 2] {
        [self.source_side().encoder(), self.target.encoder()]
    }

    /// The text of ids, without special tokens.
    pub fn decode_target(&self, ids: &[u32]) -> Result<String, DataError> {
        self.target.decode(ids)
    }

    /// The text of ids, without special tokens.
    pub fn decode_source(&self, ids: &[u32]) -> Result<String, DataError> {
        self.source_side().decode(ids)
    }

    /// The special tokens of the target.
    pub fn special(&self) -> SubwordSpecialTokens {
        self.target.special()
    }

    /// The special tokens of the source.
    pub fn source_special(&self) -> SubwordSpecialTokens {
        self.source_side().special()
    }

    /// The size of the source vocabulary: all ids are below it.
    pub fn source_vocabulary(&self) -> usize {
        self.source_side().vocabulary()
    }

    /// The size of the target vocabulary: all ids are below it.
    pub fn target_vocabulary(&self) -> usize {
        self.target.vocabulary()
    }

    /// Whether one tokenizer is used for both sides.
    pub fn is_joint(&self) -> bool {
        self.source.is_none()
    }

    /// The names of the source and target languages, if given.
    pub fn languages(&self) -> &[Option<String>; 2] {
        &self.languages
    }

    /// Names and contents of the files, for a checkpoint. Written in this order, the last file
    /// exists only if all do. `max_length` is the number of tokens that the model reads.
    pub fn files(&self, max_length: usize) -> Vec<(String, Vec<u8>)> {
        let mut files = vec![(CONFIG_FILE.to_owned(), format!("{:#}\n", self.config(max_length)).into_bytes())];
        let mut add = |name: &str, side: &Subwords| files.push((name.to_owned(), side.json().to_vec()));
        match &self.source {
            None => add(TOKENIZER_FILE, &self.target),
            Some(source) => {
                add(TARGET_TOKENIZER_FILE, &self.target);
                add(SOURCE_TOKENIZER_FILE, source);
            }
        }
        files
    }

    fn source_side(&self) -> &Subwords {
        self.source.as_ref().unwrap_or(&self.target)
    }

    /// The content of `tokenizer_config.json`, which Hugging Face's `AutoTokenizer` reads.
    fn config(&self, max_length: usize) -> serde_json::Value {
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>",
            // `</s>` in a line of text is plain text, not the end token.
            "split_special_tokens": true,
            "clean_up_tokenization_spaces": false,
        });
        for (key, language) in LANGUAGE_KEYS.into_iter().zip(&self.languages) {
            if let Some(language) = language {
                config[key] = language.as_str().into();
            }
        }
        config
    }
}

/// The languages in a `tokenizer_config.json`, if the file exists.
fn read_languages(config: &Path) -> Result<[Option<String>; 2], DataError> {
    if !config.exists() {
        return Ok([None, None]);
    }
    let bytes = fs::read(config).map_err(|reason| DataError::Io { path: config.to_owned(), reason })?;
    let json: serde_json::Value = serde_json::from_slice(&bytes)
        .map_err(|reason| CorpusError::BadTokenizer { path: config.to_owned(), problem: reason.to_string() })?;
    Ok(LANGUAGE_KEYS.map(|key| Some(json[key].as_str()?.to_owned())))
}
