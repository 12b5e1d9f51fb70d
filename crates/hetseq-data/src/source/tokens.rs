//! A shard of tokenised text: documents, their sentences and tokens, in one memory-mapped file.
//!
//! A header (`file_header.rs`) has the kind `HETSEQTK`, the numbers vocabulary size and largest id
//! in the shard, and the counts of tokens, sentences and documents. It is padded with zeros to 128
//! bytes. Three tables follow, with little-endian numbers:
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
use super::file_header::{FileHeader, HEADER_BYTES};
use crate::error::{CorpusError, DataError};

const KIND: [u8; 8] = *b"HETSEQTK";
const VERSION: u32 = 1;
const PADDED_HEADER_BYTES: usize = 128;

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
        let header = FileHeader {
            id_bytes: self.width.bytes() as u32,
            numbers: [self.vocabulary as u32, self.largest],
            counts: [self.tokens(), self.sentence_ends.len(), self.document_ends.len()],
            hash: *hasher.finalize().as_bytes(),
        };
        let mut header = header.to_bytes(KIND, VERSION);
        header.resize(PADDED_HEADER_BYTES, 0);
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
        if !bytes.starts_with(&KIND) {
            let expected = "a token shard (HETSEQTK)".to_owned();
            let found = format!("a file that begins with {:02x?}", &bytes[..bytes.len().min(8)]);
            return Err(DataError::WrongKind { path, expected, found });
        }
        let Some(header) = bytes.get(..PADDED_HEADER_BYTES) else {
            return Err(DataError::ShortHeader { path, header_bytes: PADDED_HEADER_BYTES, found_bytes: bytes.len() });
        };
        let version = FileHeader::version(header);
        if version != VERSION {
            return Err(damaged("version", format!("{version} is not supported (expected {VERSION})")));
        }
        let Some(FileHeader { id_bytes, numbers, counts, hash }) = FileHeader::read(header) else {
            return Err(damaged("header", "its checksum is wrong".to_owned()));
        };
        if header[HEADER_BYTES..].iter().any(|&byte| byte != 0) {
            return Err(damaged("header", "its last bytes are not zero".to_owned()));
        }
        let Some(width) = IdWidth::from_bytes(id_bytes) else {
            return Err(damaged("id width", format!("{id_bytes} bytes per id")));
        };
        let [tokens, sentences, documents] = counts;
        let expected_bytes = PADDED_HEADER_BYTES as u128
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
        let (vocabulary, largest) = (numbers[0] as usize, numbers[1]);
        if largest as usize >= vocabulary {
            return Err(CorpusError::IdBeyondVocabulary { path, id: largest, vocabulary }.into());
        }
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
        ChecksummedFile::new(&self.path, &self.bytes, PADDED_HEADER_BYTES, self.hash, "prepare or copy it again")
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
        part(&self.bytes, PADDED_HEADER_BYTES + tokens.start * width, count, width).unwrap_or_default()
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
        let start = PADDED_HEADER_BYTES + (self.tokens * self.width.bytes()).next_multiple_of(8);
        part(&self.bytes, start, self.sentences, 4).unwrap_or_default()
    }

    fn document_ends(&self) -> &[u8] {
        let start = PADDED_HEADER_BYTES + (self.tokens * self.width.bytes()).next_multiple_of(8) + 4 * self.sentences;
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
