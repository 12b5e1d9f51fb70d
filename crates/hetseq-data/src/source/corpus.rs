//! A corpus that `hetseq prep` has prepared: a directory with a tokenizer, shards, and `corpus.json`, which lists them.
//!
//! `corpus.json` is written last: without it the directory is not finished. [`TextCorpus`] is the memory-mapped form, to be
//! sampled by [`pretrain`](crate::pretrain); shards in NVIDIA's layout are read without this file, as those of others are.

use std::path::{Path, PathBuf};

use fs_err as fs;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::bytes::write_whole;
use super::checksum::Sealed;
use super::tokens::TokenShard;
use crate::error::{CorpusError, DataError};
use crate::tokenize::{TOKENIZER_FILE, Tokenizer, Vocabulary};

pub const MANIFEST_FILE: &str = "corpus.json";
const MANIFEST_VERSION: u32 = 1;

/// Which part of a corpus.
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

/// How much text there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextCounts {
    pub documents: u64,
    pub sentences: u64,
    pub tokens: u64,
    /// Tokens that are `[UNK]`.
    pub unknown: u64,
}

/// What a corpus holds, in numbers. It tells kinds of corpora apart.
pub trait Counts: Clone + Default + PartialEq + Serialize + DeserializeOwned {
    /// What their manifests call themselves.
    const FORMATS: &[&str];
    /// What they are, to those who find another kind.
    const WHAT: &str;

    /// What comes after it in the text.
    fn add(&mut self, other: &Self);
}

impl Counts for TextCounts {
    const FORMATS: &[&str] = &[Manifest::COMPACT, Manifest::HDF5];
    const WHAT: &str = "text for BERT, as `hetseq prep bert` writes it";

    fn add(&mut self, other: &TextCounts) {
        self.documents += other.documents;
        self.sentences += other.sentences;
        self.tokens += other.tokens;
        self.unknown += other.unknown;
    }
}

/// A file of the corpus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardEntry {
    pub split: CorpusSplit,
    pub file: String,
    pub bytes: u64,
    /// In the memory-mapped form documents or pairs, in NVIDIA's layout rows.
    pub entries: u64,
}

/// `corpus.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest<C = TextCounts> {
    pub version: u32,
    /// One of [`Counts::FORMATS`].
    pub format: String,
    /// How many ids the vocabulary has, or the larger one of two.
    pub vocabulary: usize,
    pub train: C,
    pub valid: C,
    pub shards: Vec<ShardEntry>,
    /// What it was prepared with and from.
    pub settings: serde_json::Value,
}

impl Manifest {
    /// The memory-mapped form.
    pub const COMPACT: &str = "compact";
    /// NVIDIA's layout.
    pub const HDF5: &str = "hdf5";
}

impl<C: Counts> Manifest<C> {
    pub fn new(format: &str, vocabulary: usize, settings: serde_json::Value) -> Self {
        let (train, valid) = Default::default();
        let format = format.to_owned();
        Manifest { version: MANIFEST_VERSION, format, vocabulary, train, valid, shards: Vec::new(), settings }
    }

    /// None if there is none: the preparation is not finished.
    pub fn read(dir: &Path) -> Result<Option<Self>, DataError> {
        let Some(json) = read_json(dir)? else { return Ok(None) };
        let damaged =
            |problem: String| CorpusError::Damaged { path: dir.join(MANIFEST_FILE), field: MANIFEST_FILE, problem };
        let version = &json["version"];
        if *version != MANIFEST_VERSION {
            return Err(
                damaged(format!("it is of version {version}, and this program knows {MANIFEST_VERSION}")).into()
            );
        }
        let format = json["format"].as_str().unwrap_or("unknown");
        if !C::FORMATS.contains(&format) {
            let (path, expected, found) =
                (dir.to_owned(), C::WHAT.to_owned(), format!("a corpus of the kind `{format}`"));
            return Err(DataError::WrongKind { path, expected, found });
        }
        let manifest = serde_json::from_value(json).map_err(|reason| damaged(reason.to_string()))?;
        Ok(Some(manifest))
    }

    pub fn write(&self, dir: &Path) -> Result<(), DataError> {
        let path = dir.join(MANIFEST_FILE);
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|reason| DataError::Io { path: path.clone(), reason: reason.into() })?;
        text.push('\n');
        write_whole(&path, |file| file.write_all(text.as_bytes()))
    }

    pub fn counts(&self, split: CorpusSplit) -> &C {
        match split {
            CorpusSplit::Train => &self.train,
            CorpusSplit::Valid => &self.valid,
        }
    }
}

/// Which kind of corpus a directory holds: a `format` of its manifest. None if there is no manifest.
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

/// The memory-mapped form of one split.
#[derive(Debug)]
pub struct TextCorpus {
    dir: PathBuf,
    shards: Vec<TokenShard>,
    vocabulary: Vocabulary,
}

impl TextCorpus {
    /// Maps all shards of a split. Sizes, headers and offsets are checked; the tokens only by [`TextCorpus::verify`].
    pub fn open(dir: &Path, split: CorpusSplit) -> Result<Self, DataError> {
        if !dir.is_dir() {
            return Err(CorpusError::NoDirectory { dir: dir.to_owned() }.into());
        }
        let manifest = Manifest::<TextCounts>::read(dir)?
            .ok_or_else(|| CorpusError::Unfinished { dir: dir.to_owned(), file: MANIFEST_FILE })?;
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

    /// A corpus of one shard, with its vocabulary.
    pub(crate) fn of_shard(shard: TokenShard, vocabulary: Vocabulary) -> Self {
        TextCorpus { dir: PathBuf::from("(in memory)"), shards: vec![shard], vocabulary }
    }

    /// Its files, to be compared with their checksums.
    pub fn sealed(&self) -> Vec<Sealed> {
        self.shards.iter().map(TokenShard::sealed).collect()
    }

    /// Reads every byte and compares it with what was written.
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

    /// 16 hexadecimal digits that differ between any two corpora.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        self.shards.iter().for_each(|shard| {
            hasher.update(shard.hash());
        });
        hasher.finalize().to_hex()[..16].to_owned()
    }
}
