//! A corpus written by `hetseq prep`: a directory with a tokenizer, shards, and the manifest
//! `corpus.json`.
//!
//! `corpus.json` is written last: without it the directory is incomplete. [`TextCorpus`] is the
//! memory-mapped form, which [`pretrain`](crate::pretrain) samples from. Shards in NVIDIA's layout
//! are read without the manifest, because those made by other programs have none.

use std::path::{Path, PathBuf};

use fs_err as fs;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::bytes::write_atomic;
use super::checksum::ChecksummedFile;
use super::tokens::TokenShard;
use crate::error::{CorpusError, DataError};
use crate::tokenize::{TOKENIZER_FILE, Tokenizer, Vocabulary};

pub const MANIFEST_FILE: &str = "corpus.json";
const MANIFEST_VERSION: u32 = 1;

/// A split of a corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CorpusSplit {
    Train,
    Valid,
}

impl CorpusSplit {
    pub const ALL: [CorpusSplit; 2] = [CorpusSplit::Train, CorpusSplit::Valid];

    pub fn name(self) -> &'static str {
        match self {
            CorpusSplit::Train => "train",
            CorpusSplit::Valid => "valid",
        }
    }
}

/// Size of a text split.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextCounts {
    pub documents: u64,
    pub sentences: u64,
    pub tokens: u64,
    /// Number of `[UNK]` tokens.
    pub unknown: u64,
}

/// The counts of a split. Their type also identifies the kind of corpus.
pub trait Counts: Clone + Default + PartialEq + Serialize + DeserializeOwned {
    /// Values of `format` in manifests of this kind.
    const FORMATS: &[&str];
    /// Description of this kind of corpus, for the error if a directory has another.
    const DESCRIPTION: &str;

    /// Adds the counts of the text that follows.
    fn add(&mut self, other: &Self);
}

impl Counts for TextCounts {
    const FORMATS: &[&str] = &[CorpusManifest::COMPACT, CorpusManifest::HDF5];
    const DESCRIPTION: &str = "text for BERT, as `hetseq prep bert` writes it";

    fn add(&mut self, other: &TextCounts) {
        self.documents += other.documents;
        self.sentences += other.sentences;
        self.tokens += other.tokens;
        self.unknown += other.unknown;
    }
}

/// A shard in the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardEntry {
    pub split: CorpusSplit,
    pub file: String,
    pub bytes: u64,
    /// Number of documents or pairs (memory-mapped form) or rows (NVIDIA's layout).
    pub entries: u64,
}

/// The manifest, `corpus.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CorpusManifest<C = TextCounts> {
    pub version: u32,
    /// One of [`Counts::FORMATS`].
    pub format: String,
    /// Number of ids in the vocabulary, or in the larger of two.
    pub vocabulary: usize,
    pub train: C,
    pub valid: C,
    pub shards: Vec<ShardEntry>,
    /// Settings and input of the preparation.
    pub settings: serde_json::Value,
}

impl CorpusManifest {
    /// The memory-mapped form.
    pub const COMPACT: &str = "compact";
    /// NVIDIA's layout.
    pub const HDF5: &str = "hdf5";
}

impl<C: Counts> CorpusManifest<C> {
    pub fn new(format: &str, vocabulary: usize, settings: serde_json::Value) -> Self {
        let (train, valid) = Default::default();
        let format = format.to_owned();
        CorpusManifest { version: MANIFEST_VERSION, format, vocabulary, train, valid, shards: Vec::new(), settings }
    }

    /// Reads the manifest. `None` if there is none: the preparation is incomplete.
    pub fn read(dir: &Path) -> Result<Option<Self>, DataError> {
        let Some(json) = read_json(dir)? else { return Ok(None) };
        let damaged =
            |problem: String| CorpusError::Damaged { path: dir.join(MANIFEST_FILE), field: MANIFEST_FILE, problem };
        let version = &json["version"];
        if *version != MANIFEST_VERSION {
            return Err(damaged(format!("version {version} is not supported (expected {MANIFEST_VERSION})")).into());
        }
        let format = json["format"].as_str().unwrap_or("unknown");
        if !C::FORMATS.contains(&format) {
            let (path, expected, found) =
                (dir.to_owned(), C::DESCRIPTION.to_owned(), format!("a corpus in the format `{format}`"));
            return Err(DataError::WrongKind { path, expected, found });
        }
        let manifest = serde_json::from_value(json).map_err(|reason| damaged(reason.to_string()))?;
        Ok(Some(manifest))
    }

    /// Reads the manifest of a directory that must be prepared.
    pub(crate) fn open(dir: &Path) -> Result<Self, DataError> {
        if !dir.is_dir() {
            return Err(CorpusError::NoDirectory { dir: dir.to_owned() }.into());
        }
        let unfinished = || CorpusError::Unfinished { dir: dir.to_owned(), file: MANIFEST_FILE };
        Self::read(dir)?.ok_or_else(|| unfinished().into())
    }

    pub fn write(&self, dir: &Path) -> Result<(), DataError> {
        let path = dir.join(MANIFEST_FILE);
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|reason| DataError::Io { path: path.clone(), reason: reason.into() })?;
        text.push('\n');
        write_atomic(&path, |file| file.write_all(text.as_bytes()))
    }

    pub fn counts(&self, split: CorpusSplit) -> &C {
        match split {
            CorpusSplit::Train => &self.train,
            CorpusSplit::Valid => &self.valid,
        }
    }
}

/// Returns the `format` in a directory's manifest, or `None` if there is no manifest.
pub fn format(dir: &Path) -> Result<Option<String>, DataError> {
    Ok(read_json(dir)?.and_then(|json| Some(json["format"].as_str()?.to_owned())))
}

fn read_json(dir: &Path) -> Result<Option<serde_json::Value>, DataError> {
    let path = dir.join(MANIFEST_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let bytes = fs::read(&path).map_err(|reason| DataError::Io { path: path.clone(), reason })?;
    let damaged = |problem: String| CorpusError::Damaged { path: path.clone(), field: MANIFEST_FILE, problem };
    Ok(Some(serde_json::from_slice(&bytes).map_err(|reason| damaged(reason.to_string()))?))
}

/// One split in the memory-mapped form.
#[derive(Debug)]
pub struct TextCorpus {
    dir: PathBuf,
    shards: Vec<TokenShard>,
    vocabulary: Vocabulary,
}

impl TextCorpus {
    /// Maps all shards of a split. Checks sizes, headers and offsets; [`TextCorpus::verify`] checks
    /// the tokens.
    pub fn open(dir: &Path, split: CorpusSplit) -> Result<Self, DataError> {
        let manifest = CorpusManifest::<TextCounts>::open(dir)?;
        let vocabulary = Tokenizer::read_json(&dir.join(TOKENIZER_FILE))?.vocabulary().clone();
        let mut shards = Vec::new();
        for entry in manifest.shards.iter().filter(|entry| entry.split == split) {
            let shard = TokenShard::open(&dir.join(&entry.file))?;
            if shard.vocabulary() > vocabulary.size() {
                let (path, id) = (shard.path().to_owned(), shard.vocabulary() as u32 - 1);
                return Err(CorpusError::IdBeyondVocabulary { path, id, vocabulary: vocabulary.size() }.into());
            }
            shards.push(shard);
        }
        if shards.is_empty() {
            let remedy = "prepare it with --valid-fraction or --valid";
            return Err(CorpusError::NoSuchSplit { dir: dir.to_owned(), split: split.name(), remedy }.into());
        }
        Ok(TextCorpus { dir: dir.to_owned(), shards, vocabulary })
    }

    /// Builds a corpus from one shard and its vocabulary.
    pub(crate) fn from_shard(shard: TokenShard, vocabulary: Vocabulary) -> Self {
        TextCorpus { dir: PathBuf::from("(in memory)"), shards: vec![shard], vocabulary }
    }

    /// The shards with their checksums, to be verified.
    pub fn checksummed_files(&self) -> Vec<ChecksummedFile> {
        self.shards.iter().map(TokenShard::checksummed_file).collect()
    }

    /// Reads all shards and compares them with their checksums.
    pub fn verify(&self) -> Result<(), DataError> {
        self.shards.iter().try_for_each(TokenShard::verify)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    pub fn shards(&self) -> &[TokenShard] {
        &self.shards
    }

    /// 16 hexadecimal digits that differ between corpora.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        self.shards.iter().for_each(|shard| {
            hasher.update(shard.hash());
        });
        hasher.finalize().to_hex()[..16].to_owned()
    }
}
