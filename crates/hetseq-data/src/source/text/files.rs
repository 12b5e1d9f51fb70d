//! Lists text files in an order that is the same on every machine, and opens them. Called by
//! [`prep`](crate::prep) and by the other files of this module.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use fs_err as fs;

use super::zstd::{ZSTD_MAGIC, ZstdDamage, ZstdReader};
use crate::error::{CorpusError, DataError};

/// No real directory tree is deeper, but a symbolic link to a parent directory reaches it.
const MAX_DEPTH: usize = 64;
const BUFFER_BYTES: usize = 1 << 20;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Bytes at each end of a file that are part of its identity.
const IDENTITY_BYTES: u64 = 64 << 10;

/// A text file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFile {
    pub path: PathBuf,
    /// Path relative to the input that it was found in, so it is the same on every machine.
    pub name: String,
    /// Size on disk, compressed or not.
    pub bytes: u64,
}

/// Lists the files of `inputs`: files in the given order, directories recursively and sorted by
/// name.
///
/// In a directory only files with the extension `.txt`, `.jsonl`, `.ndjson`, `.parquet` or none count,
/// also with `.gz` or `.zst` after it. Hidden files and directories are skipped.
pub fn find(inputs: &[PathBuf]) -> Result<Vec<TextFile>, DataError> {
    let mut files = Vec::new();
    for input in inputs {
        if metadata(input)?.is_dir() {
            search(input, "", 0, &mut files)?;
        } else {
            let name = input.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            files.push(TextFile::new(input.clone(), name)?);
        }
    }
    if files.is_empty() {
        return Err(CorpusError::NoText { inputs: inputs.to_vec() }.into());
    }
    Ok(files)
}

fn metadata(path: &Path) -> Result<std::fs::Metadata, DataError> {
    fs::metadata(path).map_err(|reason| match reason.kind() {
        std::io::ErrorKind::NotFound => CorpusError::NoInput { path: path.to_owned() }.into(),
        _ => DataError::Io { path: path.to_owned(), reason },
    })
}

fn search(dir: &Path, prefix: &str, depth: usize, files: &mut Vec<TextFile>) -> Result<(), DataError> {
    let failed = |reason| DataError::Io { path: dir.to_owned(), reason };
    if depth > MAX_DEPTH {
        let reason = std::io::Error::other(format!("{} is more than {MAX_DEPTH} directories deep", dir.display()));
        return Err(failed(reason));
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name());
    }
    names.sort();
    for name in names {
        let path = dir.join(&name);
        let name = name.to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        let relative = if prefix.is_empty() { name.to_string() } else { format!("{prefix}/{name}") };
        if metadata(&path)?.is_dir() {
            search(&path, &relative, depth + 1, files)?;
        } else if is_text_name(Path::new(name.as_ref())) {
            files.push(TextFile::new(path, relative)?);
        }
    }
    Ok(())
}

fn is_text_name(name: &Path) -> bool {
    let stem = match name.extension() {
        Some(extension) if extension == "gz" || extension == "zst" => Path::new(name.file_stem().unwrap_or_default()),
        _ => name,
    };
    let is_known = |extension: &str| ["txt", "jsonl", "ndjson", "parquet"].contains(&extension);
    stem.extension().is_none_or(|extension| extension.to_str().is_some_and(is_known))
}

impl TextFile {
    pub(super) fn new(path: PathBuf, name: String) -> Result<Self, DataError> {
        Ok(TextFile { bytes: metadata(&path)?.len(), path, name })
    }

    /// 16 hexadecimal digits over name, size and both ends of the file: enough to detect that a
    /// restarted preparation has different input.
    pub fn identity(&self) -> Result<String, DataError> {
        let failed = |reason| DataError::Io { path: self.path.clone(), reason };
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.name.as_bytes());
        hasher.update(&self.bytes.to_le_bytes());
        let mut file = fs::File::open(&self.path).map_err(failed)?;
        let mut end = Vec::new();
        (&mut file).take(IDENTITY_BYTES).read_to_end(&mut end).map_err(failed)?;
        hasher.update(&end);
        if self.bytes > IDENTITY_BYTES {
            end.clear();
            std::io::Seek::seek(&mut file, std::io::SeekFrom::End(-(IDENTITY_BYTES as i64))).map_err(failed)?;
            file.take(IDENTITY_BYTES).read_to_end(&mut end).map_err(failed)?;
            hasher.update(&end);
        }
        Ok(hasher.finalize().to_hex()[..16].to_owned())
    }

    /// Opens the file and decompresses it if it begins like gzip or Zstandard. `read` counts the bytes read from
    /// disk.
    pub(super) fn open(&self, read: Arc<AtomicU64>) -> Result<Box<dyn BufRead + Send>, DataError> {
        let failed = |reason| DataError::Io { path: self.path.clone(), reason };
        let file = CountingFile { file: fs::File::open(&self.path).map_err(failed)?, read };
        decompress(file).map_err(failed)
    }

    /// Converts an error while reading: some kinds come from a decoder.
    pub(super) fn failed(&self, reason: std::io::Error) -> DataError {
        use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        let path = self.path.clone();
        match reason.kind() {
            _ if reason.get_ref().is_some_and(|inner| inner.is::<ZstdDamage>()) => {
                DataError::DamagedZstd { path, reason }
            }
            InvalidData | InvalidInput | UnexpectedEof => DataError::DamagedGzip { path, reason },
            _ => DataError::Io { path, reason },
        }
    }
}

/// A reader of the text, which is decompressed if it begins like gzip or Zstandard.
pub(super) fn decompress(text: impl Read + Send + 'static) -> std::io::Result<Box<dyn BufRead + Send>> {
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, text);
    let beginning = reader.fill_buf()?;
    Ok(if beginning.starts_with(&GZIP_MAGIC) {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(reader)))
    } else if beginning.starts_with(&ZSTD_MAGIC) {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, ZstdReader::new(reader)))
    } else {
        Box::new(reader)
    })
}

/// A file that counts the bytes read from it.
struct CountingFile {
    file: fs::File,
    read: Arc<AtomicU64>,
}

impl Read for CountingFile {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let bytes = self.file.read(buffer)?;
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_files_are_recognised_by_name() {
        for name in ["a.txt", "a.txt.gz", "a.gz", "wiki_00", "a.zst", "a.jsonl.zst", "a.ndjson", "a.parquet"] {
            assert!(is_text_name(Path::new(name)), "{name}");
        }
        for name in ["a.json", "a.tar.gz", "a.hdf5", "README.md"] {
            assert!(!is_text_name(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn files_are_sorted_by_name_and_explicit_files_may_have_any_extension() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b/2.txt", "b/10", "a.txt", ".hidden", "b/.hidden/x.txt", "data.csv", "c.txt.gz"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        let inputs = [dir.path().join("data.csv"), dir.path().to_owned()];
        let found: Vec<String> = find(&inputs).unwrap().into_iter().map(|file| file.name).collect();
        assert_eq!(found, ["data.csv", "a.txt", "b/10", "b/2.txt", "c.txt.gz"]);
        let missing = find(&[dir.path().join("nowhere")]).unwrap_err();
        assert!(missing.is_usage() && missing.to_string().starts_with("there is no file or directory"), "{missing}");
        let empty = dir.path().join("b/.hidden/empty");
        std::fs::create_dir(&empty).unwrap();
        assert!(find(&[empty]).unwrap_err().to_string().contains("found no text"));
    }

    #[test]
    fn the_identity_covers_name_size_and_both_ends() {
        let dir = tempfile::tempdir().unwrap();
        let identity = |name: &str, text: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            find(&[path]).unwrap()[0].identity().unwrap()
        };
        let mut text = vec![b'x'; 200_000];
        let first = identity("a", &text);
        assert_eq!(first, identity("a", &text));
        assert_ne!(first, identity("b", &text));
        text[199_999] = b'y';
        assert_ne!(first, identity("a", &text));
        text[199_999] = b'x';
        text[0] = b'y';
        assert_ne!(first, identity("a", &text));
    }
}
