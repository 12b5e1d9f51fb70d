//! HDF5 shards in the layout of NVIDIA's BERT scripts: six gzip datasets per file, already masked.
//!
//! | dataset | type | shape |
//! |---|---|---|
//! | `input_ids` | int32 | rows x length: `[CLS]` A `[SEP]` B `[SEP]`, masked, padded with 0 |
//! | `input_mask` | int8 | rows x length: 1 for a token, 0 for padding |
//! | `segment_ids` | int8 | rows x length: 1 in B |
//! | `masked_lm_positions` | int32 | rows x predictions, padded with 0 |
//! | `masked_lm_ids` | int32 | rows x predictions: the original ids, padded with 0 |
//! | `next_sentence_labels` | int8 | rows: 1 if B does not follow A |
//!
//! A file is decoded once and completely into [`rows`](super::rows); nothing here is called per
//! sample. Other integer types and uncompressed files are read too. [`prep`](crate::prep) writes
//! shards, [`pretrain`](crate::pretrain) reads them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fs_err as fs;
use hdf5_pure::{DType, Dataset, File, FileBuilder};

use super::bytes::write_atomic;
use super::rows::{Row, RowsBuilder};
use crate::error::{CorpusError, DataError};

const INPUT_IDS: &str = "input_ids";
const INPUT_MASK: &str = "input_mask";
const SEGMENT_IDS: &str = "segment_ids";
const POSITIONS: &str = "masked_lm_positions";
const MASKED_IDS: &str = "masked_lm_ids";
const LABELS: &str = "next_sentence_labels";

/// The default of h5py.
const GZIP_LEVEL: u32 = 4;
/// Rows per chunk: 128 KiB of ids at length 128. Reading a single row decompresses its whole chunk.
const CHUNK_ROWS: usize = 256;
/// Slightly more than the maximum ratio of gzip. A shape that needs more than that is rejected.
const MAX_GZIP_RATIO: u64 = 1100;
/// Maximum tokens per row, because positions have 16 bits.
const MAX_ROW_TOKENS: u64 = u16::MAX as u64;

/// Padded rows, to be written to a file.
#[derive(Debug)]
pub struct Hdf5Rows {
    length: usize,
    predictions: usize,
    input_ids: Vec<i32>,
    input_mask: Vec<i8>,
    segment_ids: Vec<i8>,
    positions: Vec<i32>,
    masked_ids: Vec<i32>,
    labels: Vec<i8>,
}

impl Hdf5Rows {
    /// Creates an empty list of rows with `length` tokens and up to `predictions` masked ones.
    pub fn new(length: usize, predictions: usize) -> Self {
        let (input_ids, input_mask, segment_ids) = (Vec::new(), Vec::new(), Vec::new());
        let (positions, masked_ids, labels) = (Vec::new(), Vec::new(), Vec::new());
        Hdf5Rows { length, predictions, input_ids, input_mask, segment_ids, positions, masked_ids, labels }
    }

    pub fn len(&self) -> usize {
        self.labels.len()
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Adds a row, truncated to `length` and `predictions`.
    pub fn push(&mut self, row: &Row) {
        let rows = self.len() + 1;
        let tokens = row.ids.len().min(self.length);
        self.input_ids.extend(row.ids.iter().take(tokens).map(|&id| id as i32));
        self.input_ids.resize(rows * self.length, 0);
        self.input_mask.extend(std::iter::repeat_n(1, tokens));
        self.input_mask.resize(rows * self.length, 0);
        self.segment_ids.extend((0..tokens).map(|at| i8::from(at >= row.first_segment)));
        self.segment_ids.resize(rows * self.length, 0);
        self.positions.extend(row.masked_positions.iter().take(self.predictions).map(|&at| at as i32));
        self.positions.resize(rows * self.predictions, 0);
        self.masked_ids.extend(row.masked_ids.iter().take(self.predictions).map(|&id| id as i32));
        self.masked_ids.resize(rows * self.predictions, 0);
        self.labels.push(i8::from(row.is_random_next));
    }

    /// Writes the file atomically. The same rows give the same bytes. Returns its size in bytes.
    pub fn write(self, path: &Path) -> Result<u64, DataError> {
        let rows = self.len() as u64;
        let chunk = CHUNK_ROWS.min(self.len().max(1)) as u64;
        let (length, predictions) = (self.length as u64, self.predictions as u64);
        let mut file = FileBuilder::new();
        let mut add_i32 = |name: &str, data: &[i32], width: u64| {
            let dataset = file.create_dataset(name).with_i32_data(data);
            dataset.with_shape(&[rows, width]).with_chunks(&[chunk, width]).with_deflate(GZIP_LEVEL);
        };
        add_i32(INPUT_IDS, &self.input_ids, length);
        add_i32(POSITIONS, &self.positions, predictions);
        add_i32(MASKED_IDS, &self.masked_ids, predictions);
        for (name, data) in [(INPUT_MASK, &self.input_mask), (SEGMENT_IDS, &self.segment_ids)] {
            let dataset = file.create_dataset(name).with_i8_data(data);
            dataset.with_shape(&[rows, length]).with_chunks(&[chunk, length]).with_deflate(GZIP_LEVEL);
        }
        let labels = file.create_dataset(LABELS).with_i8_data(&self.labels);
        labels.with_shape(&[rows]).with_chunks(&[chunk]).with_deflate(GZIP_LEVEL);
        let bytes = file.finish().map_err(|reason| bad(path, "(file)", reason.to_string()))?;
        write_atomic(path, |file| file.write_all(&bytes))?;
        Ok(bytes.len() as u64)
    }
}

/// Shape of a file's datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hdf5Shape {
    pub rows: usize,
    pub length: usize,
    pub predictions: usize,
}

/// Reads the shape of a shard, without its data.
pub fn read_shape(path: &Path) -> Result<Hdf5Shape, DataError> {
    catch_panics(path, || Shard::open(path).map(|shard| shard.shape))
}

/// Decodes a shard into one block of [`rows`](super::rows). With a `vocabulary` size, larger ids
/// are an error.
pub fn read_rows(path: &Path, vocabulary: Option<usize>) -> Result<Vec<u8>, DataError> {
    catch_panics(path, || {
        let shard = Shard::open(path)?;
        let Hdf5Shape { length, predictions, .. } = shard.shape;
        let ids = shard.read_ids(&shard.input_ids, INPUT_IDS)?;
        let mask = shard.read_bits(&shard.input_mask, INPUT_MASK)?;
        let segments = shard.read_bits(&shard.segment_ids, SEGMENT_IDS)?;
        let positions = shard.read_ids(&shard.positions, POSITIONS)?;
        let masked_ids = shard.read_ids(&shard.masked_ids, MASKED_IDS)?;
        let labels = shard.read_bits(&shard.labels, LABELS)?;
        let reader = RowReader { path, vocabulary };
        let (mut builder, mut row) = (RowsBuilder::default(), Row::default());
        for (at, &label) in labels.iter().enumerate() {
            let (tokens, predicted) = (at * length..(at + 1) * length, at * predictions..(at + 1) * predictions);
            reader.tokens(at, &ids[tokens.clone()], &mask[tokens.clone()], &mut row)?;
            reader.segments(at, &segments[tokens], &mut row)?;
            reader.masked(at, &positions[predicted.clone()], &masked_ids[predicted], &mut row)?;
            row.is_random_next = label;
            builder.push(&row);
        }
        Ok(builder.finish())
    })
}

/// Converts a panic of the HDF5 reader into an error: a damaged file must not end the process.
fn catch_panics<T>(path: &Path, read: impl FnOnce() -> Result<T, DataError>) -> Result<T, DataError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(bad(path, "(file)", "it cannot be decoded".to_owned())))
}

struct Shard<'a> {
    path: &'a Path,
    input_ids: Dataset,
    input_mask: Dataset,
    segment_ids: Dataset,
    positions: Dataset,
    masked_ids: Dataset,
    labels: Dataset,
    shape: Hdf5Shape,
}

impl<'a> Shard<'a> {
    fn open(path: &'a Path) -> Result<Self, DataError> {
        let unreadable = |reason| DataError::Io { path: path.to_owned(), reason };
        let file_bytes = fs::metadata(path).map_err(unreadable)?.len();
        if !hdf5_pure::is_hdf5(path).map_err(unreadable)? {
            let (expected, found) = ("an HDF5 file".to_owned(), "a file without the HDF5 signature".to_owned());
            return Err(DataError::WrongKind { path: path.to_owned(), expected, found });
        }
        let file = File::open_streaming(path).map_err(|reason| unreadable_field(path, "(file)", reason))?;
        // The file size stored in the file. The C library checks it too, because the missing part
        // may be one that is never read.
        let end = file.superblock().eof_address;
        if file_bytes < end {
            let problem = format!("the file is truncated: it has {file_bytes} of {end} bytes");
            return Err(bad(path, "(file)", problem));
        }
        let dataset = |name: &str| {
            file.dataset(name).map_err(|reason| match newer_version(&reason) {
                Some(problem) => CorpusError::NewerHdf5 { path: path.to_owned(), problem }.into(),
                None => bad(path, name, format!("it is missing or unreadable ({reason})")),
            })
        };
        let (input_ids, positions) = (dataset(INPUT_IDS)?, dataset(POSITIONS)?);
        let [rows, length] = dimensions(path, &input_ids, INPUT_IDS)?;
        let [_, predictions] = dimensions(path, &positions, POSITIONS)?;
        if length == 0 || length > MAX_ROW_TOKENS || predictions > length {
            let problem = format!("rows of {length} tokens with {predictions} predictions");
            return Err(bad(path, INPUT_IDS, problem));
        }
        // Tokens and masked tokens of a shard are counted in 32 bits.
        if rows.saturating_mul(length) > u64::from(u32::MAX) {
            return Err(bad(path, INPUT_IDS, format!("{rows} rows of {length} are too many for one file")));
        }
        let shape = Hdf5Shape { rows: rows as usize, length: length as usize, predictions: predictions as usize };
        let (input_mask, segment_ids) = (dataset(INPUT_MASK)?, dataset(SEGMENT_IDS)?);
        let (masked_ids, labels) = (dataset(MASKED_IDS)?, dataset(LABELS)?);
        let shard = Shard { path, input_ids, input_mask, segment_ids, positions, masked_ids, labels, shape };
        for (dataset, name, width) in [
            (&shard.input_ids, INPUT_IDS, length),
            (&shard.input_mask, INPUT_MASK, length),
            (&shard.segment_ids, SEGMENT_IDS, length),
            (&shard.positions, POSITIONS, predictions),
            (&shard.masked_ids, MASKED_IDS, predictions),
            (&shard.labels, LABELS, 1),
        ] {
            shard.check(dataset, name, width, file_bytes)?;
        }
        Ok(shard)
    }

    fn check(&self, dataset: &Dataset, name: &str, width: u64, file_bytes: u64) -> Result<(), DataError> {
        let rows = self.shape.rows as u64;
        let found = dimensions(self.path, dataset, name)?;
        if found != [rows, width] {
            let problem = format!("it has {} x {} values, expected {rows} x {width}", found[0], found[1]);
            return Err(bad(self.path, name, problem));
        }
        let kind = dataset.dtype().map_err(|reason| unreadable_field(self.path, name, reason))?;
        let bytes = match kind {
            DType::I8 | DType::U8 => 1,
            DType::I16 | DType::U16 => 2,
            DType::I32 | DType::U32 => 4,
            DType::I64 | DType::U64 => 8,
            _ => return Err(bad(self.path, name, format!("it contains {kind} values, expected integers"))),
        };
        if rows.saturating_mul(width).saturating_mul(bytes) > file_bytes.saturating_mul(MAX_GZIP_RATIO) {
            let problem = format!("{rows} x {width} values do not fit in a file of {file_bytes} bytes");
            return Err(bad(self.path, name, problem));
        }
        Ok(())
    }

    fn read_ids(&self, dataset: &Dataset, name: &str) -> Result<Vec<i32>, DataError> {
        let failed = |reason: hdf5_pure::Error| unreadable_field(self.path, name, reason);
        let values = match dataset.dtype().map_err(failed)? {
            DType::U32 | DType::I64 | DType::U64 => {
                let values = dataset.read_i64().map_err(failed)?;
                let converted: Result<Vec<i32>, _> = values.into_iter().map(i32::try_from).collect();
                converted.map_err(|_| bad(self.path, name, "a value does not fit into 32 bits".to_owned()))?
            }
            _ => dataset.read_i32().map_err(failed)?,
        };
        let width = if name == INPUT_IDS { self.shape.length } else { self.shape.predictions };
        self.check_count(values, name, width)
    }

    /// Reads a dataset of zeros and ones.
    fn read_bits(&self, dataset: &Dataset, name: &str) -> Result<Vec<bool>, DataError> {
        let values = dataset.read_i8().map_err(|reason| unreadable_field(self.path, name, reason))?;
        if let Some(at) = values.iter().position(|value| !(0..=1).contains(value)) {
            return Err(bad(self.path, name, format!("value {at} is {}, neither 0 nor 1", values[at])));
        }
        let width = if name == LABELS { 1 } else { self.shape.length };
        self.check_count(values.into_iter().map(|value| value == 1).collect(), name, width)
    }

    fn check_count<T>(&self, values: Vec<T>, name: &str, width: usize) -> Result<Vec<T>, DataError> {
        let expected = self.shape.rows * width;
        match values.len() == expected {
            true => Ok(values),
            false => Err(bad(self.path, name, format!("read {} values, expected {expected}", values.len()))),
        }
    }
}

/// Returns the number of rows and their width. A one-dimensional dataset has width 1.
fn dimensions(path: &Path, dataset: &Dataset, name: &str) -> Result<[u64; 2], DataError> {
    let shape = dataset.shape().map_err(|reason| unreadable_field(path, name, reason))?;
    match shape[..] {
        [rows] => Ok([rows, 1]),
        [rows, width] => Ok([rows, width]),
        _ => Err(bad(path, name, format!("it has {} dimensions, expected two", shape.len()))),
    }
}

/// Checks padded rows and removes the padding.
struct RowReader<'a> {
    path: &'a Path,
    vocabulary: Option<usize>,
}

impl RowReader<'_> {
    fn id(&self, at: usize, name: &str, id: i32) -> Result<u32, DataError> {
        let valid = u32::try_from(id).map_err(|_| bad(self.path, name, format!("row {at} has the id {id}")))?;
        match self.vocabulary {
            Some(vocabulary) if valid as usize >= vocabulary => {
                Err(CorpusError::IdBeyondVocabulary { path: self.path.to_owned(), id: valid, vocabulary }.into())
            }
            _ => Ok(valid),
        }
    }

    fn tokens(&self, at: usize, ids: &[i32], mask: &[bool], row: &mut Row) -> Result<(), DataError> {
        let tokens = mask.iter().take_while(|&&is_token| is_token).count();
        if mask[tokens..].contains(&true) {
            return Err(bad(self.path, INPUT_MASK, format!("row {at} has padding between its tokens")));
        }
        row.ids.clear();
        for &id in &ids[..tokens] {
            row.ids.push(self.id(at, INPUT_IDS, id)?);
        }
        Ok(())
    }

    fn segments(&self, at: usize, segments: &[bool], row: &mut Row) -> Result<(), DataError> {
        let segments = &segments[..row.ids.len()];
        row.first_segment = segments.iter().take_while(|&&is_second| !is_second).count();
        match segments[row.first_segment..].contains(&false) {
            true => Err(bad(self.path, SEGMENT_IDS, format!("row {at} must be zeros, then ones"))),
            false => Ok(()),
        }
    }

    /// Position 0 is `[CLS]`, which is never masked, so the first 0 begins the padding.
    fn masked(&self, at: usize, positions: &[i32], ids: &[i32], row: &mut Row) -> Result<(), DataError> {
        row.masked_positions.clear();
        row.masked_ids.clear();
        for (&position, &id) in positions.iter().zip(ids).take_while(|(position, _)| **position != 0) {
            let valid = u32::try_from(position).ok().filter(|&valid| (valid as usize) < row.ids.len());
            let Some(valid) = valid else {
                let problem = format!("row {at} masks position {position} of {} tokens", row.ids.len());
                return Err(bad(self.path, POSITIONS, problem));
            };
            row.masked_positions.push(valid);
            row.masked_ids.push(self.id(at, MASKED_IDS, id)?);
        }
        Ok(())
    }
}

/// The error of the HDF5 reader about a field.
fn unreadable_field(path: &Path, field: &str, reason: hdf5_pure::Error) -> DataError {
    match newer_version(&reason) {
        Some(problem) => CorpusError::NewerHdf5 { path: path.to_owned(), problem }.into(),
        None => bad(path, field, reason.to_string()),
    }
}

/// Whether a part of the file has a version after those that the reader knows, in words. A version
/// that is far too large is damage.
fn newer_version(reason: &hdf5_pure::Error) -> Option<String> {
    let text = reason.to_string();
    let (before, version) = text.rsplit_once(" version: ")?;
    let part = before.rsplit([' ', ':']).next()?;
    version.parse().ok().filter(|version: &u8| (1..=9).contains(version)).map(|n| format!("{part} version {n}"))
}

fn bad(path: &Path, field: &str, problem: String) -> DataError {
    CorpusError::BadField { path: path.to_owned(), field: field.to_owned(), problem }.into()
}
