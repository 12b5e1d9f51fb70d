//! Both sides' tokenizers: one for both, or one for each. Of a prepared directory or of a checkpoint.

use std::path::Path;

use fs_err as fs;
use serde_json::json;

use crate::error::{CorpusError, DataError};
use crate::tokenize::{CONFIG_FILE, Special, SubwordEncoder, Subwords, TOKENIZER_FILE};

/// Where each side has a vocabulary of its own.
pub const SOURCE_TOKENIZER_FILE: &str = "source_tokenizer.json";
pub const TARGET_TOKENIZER_FILE: &str = "target_tokenizer.json";

/// Turns lines of both languages into ids, and ids of the target into lines.
#[derive(Debug, Clone)]
pub struct TranslateTokenizer {
    /// None if the target's is for both.
    source: Option<Subwords>,
    target: Subwords,
    /// What source and target are called, if anybody said so.
    languages: [Option<String>; 2],
}

/// Of `tokenizer_config.json`.
const LANGUAGE_KEYS: [&str; 2] = ["source_lang", "target_lang"];

impl TranslateTokenizer {
    /// One for both sides.
    pub fn joint(both: Subwords) -> Self {
        TranslateTokenizer { source: None, target: both, languages: [None, None] }
    }

    /// One for each.
    pub fn separate(source: Subwords, target: Subwords) -> Self {
        TranslateTokenizer { source: Some(source), target, languages: [None, None] }
    }

    pub fn with_languages(self, languages: [Option<String>; 2]) -> Self {
        TranslateTokenizer { languages, ..self }
    }

    /// Reads `tokenizer.json`, or `source_tokenizer.json` and `target_tokenizer.json`, of a directory.
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

    /// Whether all its files are in a directory that [`TranslateTokenizer::files`] were written into, in that order.
    pub fn is_whole(dir: &Path) -> bool {
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

    /// Encodes pair after pair, and remembers words: of source and target.
    pub fn encoders(&self) -> [SubwordEncoder<'_>; 2] {
        [self.source_side().encoder(), self.target.encoder()]
    }

    /// Plain text; special tokens are left out.
    pub fn decode_target(&self, ids: &[u32]) -> Result<String, DataError> {
        self.target.decode(ids)
    }

    /// Plain text; special tokens are left out.
    pub fn decode_source(&self, ids: &[u32]) -> Result<String, DataError> {
        self.source_side().decode(ids)
    }

    /// Of the target.
    pub fn special(&self) -> Special {
        self.target.special()
    }

    pub fn source_special(&self) -> Special {
        self.source_side().special()
    }

    /// How many ids the source has: all are below.
    pub fn source_vocabulary(&self) -> usize {
        self.source_side().vocabulary()
    }

    /// How many ids the target has: all are below.
    pub fn target_vocabulary(&self) -> usize {
        self.target.vocabulary()
    }

    /// Whether one tokenizer is for both sides.
    pub fn is_joint(&self) -> bool {
        self.source.is_none()
    }

    /// What source and target are called, if anybody said so.
    pub fn languages(&self) -> &[Option<String>; 2] {
        &self.languages
    }

    /// Names and contents of its files, to lay into a checkpoint. Written in this order, the last is there only if all are.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let mut files = vec![(CONFIG_FILE.to_owned(), format!("{:#}\n", self.config()).into_bytes())];
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

    /// `tokenizer_config.json`: what Hugging Face's `AutoTokenizer` asks for.
    fn config(&self) -> serde_json::Value {
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>",
            // Text is only text: `</s>` in a line is no end of it.
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

/// What a `tokenizer_config.json` says of languages, if it is there.
fn read_languages(config: &Path) -> Result<[Option<String>; 2], DataError> {
    if !config.exists() {
        return Ok([None, None]);
    }
    let bytes = fs::read(config).map_err(|reason| DataError::Io { path: config.to_owned(), reason })?;
    let json: serde_json::Value = serde_json::from_slice(&bytes)
        .map_err(|reason| CorpusError::BadTokenizer { path: config.to_owned(), problem: reason.to_string() })?;
    Ok(LANGUAGE_KEYS.map(|key| Some(json[key].as_str()?.to_owned())))
}
