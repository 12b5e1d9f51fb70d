//! Shards in the layout of NVIDIA's BERT scripts: six gzip datasets in an HDF5 file, masked when they were made.
//!
//! | dataset | type | shape |
//! |---|---|---|
//! | `input_ids` | int32 | rows x length: `[CLS]` A `[SEP]` B `[SEP]`, masked, padded with 0 |
//! | `input_mask` | int8 | rows x length: 1 where a token is |
//! | `segment_ids` | int8 | rows x length: 1 in B |
//! | `masked_lm_positions` | int32 | rows x predictions, padded with 0 |
//! | `masked_lm_ids` | int32 | rows x predictions: what was there, padded with 0 |
//! | `next_sentence_labels` | int8 | rows: 1 if B does not follow A |
//!
//! A file is decoded once, whole, into [`rows`](super::rows); nothing here is called per sample. Other integer types than
//! these are read too, as are files without compression.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fs_err as fs;
use hdf5_pure::{DType, Dataset, File, FileBuilder};

use super::bytes::write_whole;
use super::rows::{Row, RowsBuilder};
use crate::error::{CorpusError, DataError};

const INPUT_IDS: &str = "input_ids";
const INPUT_MASK: &str = "input_mask";
const SEGMENT_IDS: &str = "segment_ids";
const POSITIONS: &str = "masked_lm_positions";
const MASKED_IDS: &str = "masked_lm_ids";
const LABELS: &str = "next_sentence_labels";

/// As h5py compresses if not told otherwise.
const GZIP_LEVEL: u32 = 4;
/// Rows per chunk: 128 KiB of ids at length 128. Readers that want single rows unpack whole chunks.
const CHUNK_ROWS: usize = 256;
/// The most that gzip can make of a byte, and then some: a shape that would need more is not believed.
const GZIP_RATIO: u64 = 1100;
/// The longest row: positions are kept in 16 bits.
const LONGEST_ROW: u64 = u16::MAX as u64;

/// Rows on their way into a file, padded.
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
    /// Rows of `length` tokens, of which `predictions` can be masked.
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

    /// What does not fit is cut off.
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

    /// Writes the file; it is whole or not there. The same rows make the same bytes. Returns its size.
    pub fn write(self, path: &Path) -> Result<u64, DataError> {
        let rows = self.len() as u64;
        let chunk = CHUNK_ROWS.min(self.len().max(1)) as u64;
        let (length, predictions) = (self.length as u64, self.predictions as u64);
        let mut file = FileBuilder::new();
        let mut wide = |name: &str, data: &[i32], width: u64| {
            let dataset = file.create_dataset(name).with_i32_data(data);
            dataset.with_shape(&[rows, width]).with_chunks(&[chunk, width]).with_deflate(GZIP_LEVEL);
        };
        wide(INPUT_IDS, &self.input_ids, length);
        wide(POSITIONS, &self.positions, predictions);
        wide(MASKED_IDS, &self.masked_ids, predictions);
        for (name, data) in [(INPUT_MASK, &self.input_mask), (SEGMENT_IDS, &self.segment_ids)] {
            let dataset = file.create_dataset(name).with_i8_data(data);
            dataset.with_shape(&[rows, length]).with_chunks(&[chunk, length]).with_deflate(GZIP_LEVEL);
        }
        let labels = file.create_dataset(LABELS).with_i8_data(&self.labels);
        labels.with_shape(&[rows]).with_chunks(&[chunk]).with_deflate(GZIP_LEVEL);
        let bytes = file.finish().map_err(|reason| bad(path, "(file)", reason.to_string()))?;
        write_whole(path, |file| file.write_all(&bytes))?;
        Ok(bytes.len() as u64)
    }
}

/// How large a file's datasets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hdf5Shape {
    pub rows: usize,
    pub length: usize,
    pub predictions: usize,
}

/// The shape of a shard; reads no data.
pub fn read_shape(path: &Path) -> Result<Hdf5Shape, DataError> {
    guarded(path, || Shard::open(path).map(|shard| shard.shape))
}

/// Decodes a shard into one block of rows. An id from `vocabulary` on, if that is given, is an error.
pub fn read_rows(path: &Path, vocabulary: Option<usize>) -> Result<Vec<u8>, DataError> {
    guarded(path, || {
        let shard = Shard::open(path)?;
        let Hdf5Shape { length, predictions, .. } = shard.shape;
        let ids = shard.numbers(&shard.input_ids, INPUT_IDS)?;
        let mask = shard.bits(&shard.input_mask, INPUT_MASK)?;
        let segments = shard.bits(&shard.segment_ids, SEGMENT_IDS)?;
        let positions = shard.numbers(&shard.positions, POSITIONS)?;
        let masked_ids = shard.numbers(&shard.masked_ids, MASKED_IDS)?;
        let labels = shard.bits(&shard.labels, LABELS)?;
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

/// Whatever a damaged file does to the HDF5 reader, it must not end the process.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, DataError>) -> Result<T, DataError> {
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
            let (expected, found) = ("an HDF5 file".to_owned(), "a file without the signature of one".to_owned());
            return Err(DataError::WrongKind { path: path.to_owned(), expected, found });
        }
        let file = File::open_streaming(path).map_err(|reason| bad(path, "(file)", reason.to_string()))?;
        // The end that the file was closed with, as the C library checks it: what is cut off may be what nobody reads.
        let end = file.superblock().eof_address;
        if file_bytes < end {
            let problem = format!("it was cut short: {file_bytes} of {end} bytes are there");
            return Err(bad(path, "(file)", problem));
        }
        let dataset = |name: &str| {
            file.dataset(name).map_err(|reason| bad(path, name, format!("it is missing or unreadable ({reason})")))
        };
        let (input_ids, positions) = (dataset(INPUT_IDS)?, dataset(POSITIONS)?);
        let [rows, length] = dimensions(path, &input_ids, INPUT_IDS)?;
        let [_, predictions] = dimensions(path, &positions, POSITIONS)?;
        if length == 0 || length > LONGEST_ROW || predictions > length {
            let problem = format!("rows of {length} tokens with {predictions} predictions");
            return Err(bad(path, INPUT_IDS, problem));
        }
        // Two numbers of 32 bits count the tokens and the masked ones of a shard.
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
            let problem = format!("it has {} x {} values where {rows} x {width} were expected", found[0], found[1]);
            return Err(bad(self.path, name, problem));
        }
        let kind = dataset.dtype().map_err(|reason| bad(self.path, name, reason.to_string()))?;
        let bytes = match kind {
            DType::I8 | DType::U8 => 1,
            DType::I16 | DType::U16 => 2,
            DType::I32 | DType::U32 => 4,
            DType::I64 | DType::U64 => 8,
            _ => return Err(bad(self.path, name, format!("it holds {kind}, not integers"))),
        };
        if rows.saturating_mul(width).saturating_mul(bytes) > file_bytes.saturating_mul(GZIP_RATIO) {
            let problem = format!("{rows} x {width} values cannot come out of a file of {file_bytes} bytes");
            return Err(bad(self.path, name, problem));
        }
        Ok(())
    }

    fn numbers(&self, dataset: &Dataset, name: &str) -> Result<Vec<i32>, DataError> {
        let failed = |reason: hdf5_pure::Error| bad(self.path, name, reason.to_string());
        let values = match dataset.dtype().map_err(failed)? {
            DType::U32 | DType::I64 | DType::U64 => {
                let wide = dataset.read_i64().map_err(failed)?;
                let narrow: Result<Vec<i32>, _> = wide.into_iter().map(i32::try_from).collect();
                narrow.map_err(|_| bad(self.path, name, "a value does not fit into 32 bits".to_owned()))?
            }
            _ => dataset.read_i32().map_err(failed)?,
        };
        let width = if name == INPUT_IDS { self.shape.length } else { self.shape.predictions };
        self.counted(values, name, width)
    }

    /// Zeros and ones.
    fn bits(&self, dataset: &Dataset, name: &str) -> Result<Vec<bool>, DataError> {
        let values = dataset.read_i8().map_err(|reason| bad(self.path, name, reason.to_string()))?;
        if let Some(at) = values.iter().position(|value| !(0..=1).contains(value)) {
            return Err(bad(self.path, name, format!("value {at} is {}, neither 0 nor 1", values[at])));
        }
        let width = if name == LABELS { 1 } else { self.shape.length };
        self.counted(values.into_iter().map(|value| value == 1).collect(), name, width)
    }

    fn counted<T>(&self, values: Vec<T>, name: &str, width: usize) -> Result<Vec<T>, DataError> {
        let expected = self.shape.rows * width;
        match values.len() == expected {
            true => Ok(values),
            false => Err(bad(self.path, name, format!("it gave {} of {expected} values", values.len()))),
        }
    }
}

/// Rows and their width; a plain list has width 1.
fn dimensions(path: &Path, dataset: &Dataset, name: &str) -> Result<[u64; 2], DataError> {
    let shape = dataset.shape().map_err(|reason| bad(path, name, reason.to_string()))?;
    match shape[..] {
        [rows] => Ok([rows, 1]),
        [rows, width] => Ok([rows, width]),
        _ => Err(bad(path, name, format!("it has {} dimensions, not two", shape.len()))),
    }
}

/// Padded rows to rows without, each checked.
struct RowReader<'a> {
    path: &'a Path,
    vocabulary: Option<usize>,
}

impl RowReader<'_> {
    fn id(&self, at: usize, name: &str, id: i32) -> Result<u32, DataError> {
        let known = u32::try_from(id).map_err(|_| bad(self.path, name, format!("row {at} holds the id {id}")))?;
        match self.vocabulary {
            Some(vocabulary) if known as usize >= vocabulary => {
                Err(CorpusError::IdBeyondVocabulary { path: self.path.to_owned(), id: known, vocabulary }.into())
            }
            _ => Ok(known),
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
            true => Err(bad(self.path, SEGMENT_IDS, format!("row {at} is not first zeros, then ones"))),
            false => Ok(()),
        }
    }

    /// Position 0 is `[CLS]`, which is never masked: there the padding begins.
    fn masked(&self, at: usize, positions: &[i32], ids: &[i32], row: &mut Row) -> Result<(), DataError> {
        row.masked_positions.clear();
        row.masked_ids.clear();
        for (&position, &id) in positions.iter().zip(ids).take_while(|(position, _)| **position != 0) {
            let place = u32::try_from(position).ok().filter(|&place| (place as usize) < row.ids.len());
            let Some(place) = place else {
                let problem = format!("row {at} masks position {position} of {} tokens", row.ids.len());
                return Err(bad(self.path, POSITIONS, problem));
            };
            row.masked_positions.push(place);
            row.masked_ids.push(self.id(at, MASKED_IDS, id)?);
        }
        Ok(())
    }
}

fn bad(path: &Path, field: &str, problem: String) -> DataError {
    CorpusError::BadField { path: path.to_owned(), field: field.to_owned(), problem }.into()
}
