//! A shard of tokenised text: documents, their sentences and tokens, in one memory-mapped file.
//!
//! All numbers are little-endian. A header of 128 bytes is followed by three tables:
//!
//! | bytes | header |
//! |---|---|
//! | 0..8 | `HETSEQTK` |
//! | 8..12, 12..16 | version (1), bytes per id (2 or 4) |
//! | 16..20, 20..24 | vocabulary size, largest id in the shard |
//! | 24..32, 32..40, 40..48 | number of tokens, sentences, documents |
//! | 48..80 | BLAKE3 of the tables |
//! | 80..96 | the first half of the BLAKE3 of bytes 0..80 |
//!
//! | table | entries |
//! |---|---|
//! | ids | one per token, padded with zeros to a multiple of 8 bytes |
//! | sentence ends | `u32` per sentence: the number of tokens up to its end |
//! | document ends | `u32` per document: the number of sentences up to its end |
//!
//! No sentence and no document is empty. For translation a document is a pair, and its two
//! sentences are the two sides. [`prep`](crate::prep) writes shards; [`pretrain`](crate::pretrain)
//! and [`translate`](crate::translate) read them.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::bytes::{Bytes, IdWidth, part, u32_at, write_atomic};
use super::checksum::ChecksummedFile;
use crate::error::{CorpusError, DataError};

const MAGIC: &[u8; 8] = b"HETSEQTK";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 128;
const HASHED_HEADER_BYTES: usize = 80;

/// Encoded documents, to be appended to a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedDocuments {
    pub ids: Vec<u32>,
    /// Counted in tokens.
    pub sentence_ends: Vec<u32>,
    /// Counted in sentences.
    pub document_ends: Vec<u32>,
}

/// Builds a shard in memory.
#[derive(Debug)]
pub struct ShardBuilder {
    width: IdWidth,
    vocabulary: usize,
    largest: u32,
    ids: Vec<u8>,
    sentence_ends: Vec<u32>,
    document_ends: Vec<u32>,
}

impl ShardBuilder {
    pub fn new(vocabulary: usize) -> Self {
        let width = IdWidth::for_vocabulary(vocabulary);
        let (ids, sentence_ends, document_ends) = (Vec::new(), Vec::new(), Vec::new());
        ShardBuilder { width, vocabulary, largest: 0, ids, sentence_ends, document_ends }
    }

    pub fn append(&mut self, documents: &EncodedDocuments) {
        let (tokens, sentences) = (self.tokens() as u32, self.sentence_ends.len() as u32);
        self.width.pack(&documents.ids, &mut self.ids);
        self.largest = documents.ids.iter().fold(self.largest, |largest, &id| largest.max(id));
        self.sentence_ends.extend(documents.sentence_ends.iter().map(|end| tokens + end));
        self.document_ends.extend(documents.document_ends.iter().map(|end| sentences + end));
    }

    pub fn is_empty(&self) -> bool {
        self.document_ends.is_empty()
    }

    pub fn tokens(&self) -> usize {
        self.ids.len() / self.width.bytes()
    }

    pub fn documents(&self) -> usize {
        self.document_ends.len()
    }

    /// Returns the header, and the tables after the ids with the padding before them.
    fn header_and_ends(&self) -> (Vec<u8>, Vec<u8>) {
        let mut ends = vec![0; self.ids.len().next_multiple_of(8) - self.ids.len()];
        for end in self.sentence_ends.iter().chain(&self.document_ends) {
            ends.extend_from_slice(&end.to_le_bytes());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.ids).update(&ends);
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(MAGIC);
        for number in [VERSION, self.width.bytes() as u32, self.vocabulary as u32, self.largest] {
            header.extend_from_slice(&number.to_le_bytes());
        }
        for count in [self.tokens(), self.sentence_ends.len(), self.document_ends.len()] {
            header.extend_from_slice(&(count as u64).to_le_bytes());
        }
        header.extend_from_slice(hasher.finalize().as_bytes());
        let checksum = blake3::hash(&header);
        header.extend_from_slice(&checksum.as_bytes()[..16]);
        header.resize(HEADER_BYTES, 0);
        (header, ends)
    }

    /// Writes the shard atomically. Returns its size in bytes.
    pub fn write(&self, path: &Path) -> Result<u64, DataError> {
        let (header, ends) = self.header_and_ends();
        write_atomic(path, |file| {
            file.write_all(&header)?;
            file.write_all(&self.ids)?;
            file.write_all(&ends)
        })?;
        Ok((header.len() + self.ids.len() + ends.len()) as u64)
    }

    /// Returns the shard in memory, without a file.
    pub fn into_shard(self) -> Result<TokenShard, DataError> {
        let (mut bytes, ends) = self.header_and_ends();
        bytes.extend_from_slice(&self.ids);
        drop(self.ids);
        bytes.extend_from_slice(&ends);
        TokenShard::new(PathBuf::from("(in memory)"), Bytes::Owned(bytes))
    }
}

/// A shard opened for reading.
#[derive(Debug)]
pub struct TokenShard {
    path: PathBuf,
    bytes: Arc<Bytes>,
    width: IdWidth,
    vocabulary: usize,
    tokens: usize,
    sentences: usize,
    documents: usize,
    hash: [u8; 32],
}

impl TokenShard {
    /// Maps a shard and checks everything except the ids, which [`TokenShard::verify`] compares
    /// with the header's hash.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        Self::new(path.to_owned(), Bytes::map(path)?)
    }

    fn new(path: PathBuf, bytes: Bytes) -> Result<Self, DataError> {
        let damaged =
            |field, problem: String| DataError::from(CorpusError::Damaged { path: path.clone(), field, problem });
        if !bytes.starts_with(MAGIC) {
            let expected = "a token shard (HETSEQTK)".to_owned();
            let found = format!("a file that begins with {:02x?}", &bytes[..bytes.len().min(8)]);
            return Err(DataError::WrongKind { path, expected, found });
        }
        let Some(header) = bytes.get(..HEADER_BYTES) else {
            return Err(DataError::ShortHeader { path, header_bytes: HEADER_BYTES, found_bytes: bytes.len() });
        };
        let (number, version) = (|at| u32_at(header, at), u32_at(header, 2));
        if version != VERSION {
            return Err(damaged("version", format!("{version} is not supported (expected {VERSION})")));
        }
        if blake3::hash(&header[..HASHED_HEADER_BYTES]).as_bytes()[..16]
            != header[HASHED_HEADER_BYTES..HASHED_HEADER_BYTES + 16]
        {
            return Err(damaged("header", "its checksum is wrong".to_owned()));
        }
        if header[HASHED_HEADER_BYTES + 16..].iter().any(|&byte| byte != 0) {
            return Err(damaged("header", "its last bytes are not zero".to_owned()));
        }
        let Some(width) = IdWidth::from_bytes(number(3)) else {
            return Err(damaged("id width", format!("{} bytes per id", number(3))));
        };
        let count = |at| (u64::from(number(at)) | u64::from(number(at + 1)) << 32) as usize;
        let (tokens, sentences, documents) = (count(6), count(8), count(10));
        let expected_bytes = HEADER_BYTES as u128
            + (tokens as u128 * width.bytes() as u128).next_multiple_of(8)
            + 4 * (sentences as u128 + documents as u128);
        let shape = format!("{tokens} tokens, {sentences} sentences and {documents} documents");
        let found_bytes = bytes.len() as u64;
        if u128::from(found_bytes) < expected_bytes {
            return Err(DataError::TooShort { path, shape, expected_bytes, found_bytes });
        }
        if u128::from(found_bytes) > expected_bytes {
            return Err(DataError::TooLong { path, shape, expected_bytes });
        }
        let (vocabulary, largest) = (number(4) as usize, number(5));
        if largest as usize >= vocabulary {
            return Err(CorpusError::IdBeyondVocabulary { path, id: largest, vocabulary }.into());
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(&header[48..80]);
        let bytes = Arc::new(bytes);
        let shard = TokenShard { path, bytes, width, vocabulary, tokens, sentences, documents, hash };
        shard.check_ends("sentence ends", shard.sentence_ends(), tokens)?;
        shard.check_ends("document ends", shard.document_ends(), sentences)?;
        Ok(shard)
    }

    /// Checks that ends ascend and that the last is the total. All later indexing relies on it.
    fn check_ends(&self, field: &'static str, ends: &[u8], total: usize) -> Result<(), DataError> {
        let mut last = 0;
        for (at, end) in ends.chunks_exact(4).map(|end| u32_at(end, 0)).enumerate() {
            if end <= last {
                let problem = format!("entry {at} is {end}, after {last}");
                return Err(CorpusError::Damaged { path: self.path.clone(), field, problem }.into());
            }
            last = end;
        }
        if last as usize != total {
            let problem = format!("they end at {last}, not at {total}");
            return Err(CorpusError::Damaged { path: self.path.clone(), field, problem }.into());
        }
        Ok(())
    }

    /// Reads the whole shard and compares it with the hash in the header.
    pub fn verify(&self) -> Result<(), DataError> {
        self.checksummed_file().verify()
    }

    /// The file with its hash, to be verified in the background.
    pub fn checksummed_file(&self) -> ChecksummedFile {
        ChecksummedFile::new(&self.path, &self.bytes, HEADER_BYTES, self.hash, "prepare or copy it again")
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Identifies the content.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// Vocabulary size when the shard was written.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn sentences(&self) -> usize {
        self.sentences
    }

    pub fn documents(&self) -> usize {
        self.documents
    }

    /// Appends the ids of a range of tokens. Tokens past the end are skipped.
    pub fn ids(&self, tokens: Range<usize>, ids: &mut Vec<u32>) {
        self.width.unpack(self.packed(tokens), ids);
    }

    /// Iterates over the ids of a range of tokens. Tokens past the end are skipped.
    pub fn iter(&self, tokens: Range<usize>) -> impl Iterator<Item = u32> {
        self.width.iter(self.packed(tokens))
    }

    fn packed(&self, tokens: Range<usize>) -> &[u8] {
        let width = self.width.bytes();
        let count = tokens.end.min(self.tokens).saturating_sub(tokens.start);
        part(&self.bytes, HEADER_BYTES + tokens.start * width, count, width).unwrap_or_default()
    }

    /// The number of tokens up to the end of a sentence.
    #[inline]
    pub fn sentence_end(&self, sentence: usize) -> usize {
        u32_at(self.sentence_ends(), sentence) as usize
    }

    /// The number of sentences up to the end of a document.
    #[inline]
    pub fn document_end(&self, document: usize) -> usize {
        u32_at(self.document_ends(), document) as usize
    }

    /// The index of the sentence that contains a token.
    pub fn sentence_of(&self, token: usize) -> usize {
        partition_point(self.sentences, |sentence| self.sentence_end(sentence) > token)
    }

    /// The index of the document that contains a token.
    pub fn document_of(&self, token: usize) -> usize {
        let sentence = self.sentence_of(token);
        partition_point(self.documents, |document| self.document_end(document) > sentence)
    }

    fn sentence_ends(&self) -> &[u8] {
        let start = HEADER_BYTES + (self.tokens * self.width.bytes()).next_multiple_of(8);
        part(&self.bytes, start, self.sentences, 4).unwrap_or_default()
    }

    fn document_ends(&self) -> &[u8] {
        let start = HEADER_BYTES + (self.tokens * self.width.bytes()).next_multiple_of(8) + 4 * self.sentences;
        part(&self.bytes, start, self.documents, 4).unwrap_or_default()
    }
}

/// Binary search for the first index in `0..count` where `is_past` is true, and with it for all
/// later ones.
fn partition_point(count: usize, is_past: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_past(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}
