//! Checks mapped files against the checksums in their headers, on separate threads: reading a large
//! corpus takes minutes.
//!
//! Comparing headers between machines is not enough: a damaged shard still has the header that it
//! was written with. So each run verifies all files when it starts. Files that passed are recorded
//! in the user's cache directory, with their metadata (size, times, inode, device), and are not
//! read again until that changes. `hetseq-train` (`data_check.rs`) runs it.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use fs_err as fs;

use super::bytes::{Bytes, write_atomic};
use crate::error::{CorpusError, DataError};

/// Bytes hashed at a time. Between two blocks a thread checks whether it was cancelled.
const BLOCK_BYTES: usize = 8 << 20;
/// More threads do not read faster from any disk.
const MAX_THREADS: usize = 8;
/// A larger file is not one of our caches.
const MAX_CACHE_BYTES: u64 = 64 << 20;

/// A file with the BLAKE3 hash of everything after its header.
#[derive(Clone)]
pub struct ChecksummedFile {
    path: PathBuf,
    bytes: Arc<Bytes>,
    header_bytes: usize,
    hash: [u8; 32],
    /// What the user can do if the file is damaged.
    remedy: &'static str,
}

impl fmt::Debug for ChecksummedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChecksummedFile")
            .field("path", &self.path)
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

impl ChecksummedFile {
    pub(super) fn new(
        path: &Path,
        bytes: &Arc<Bytes>,
        header_bytes: usize,
        hash: [u8; 32],
        remedy: &'static str,
    ) -> Self {
        ChecksummedFile { path: path.to_owned(), bytes: bytes.clone(), header_bytes, hash, remedy }
    }

    /// Reads the whole file and compares it with its hash.
    pub(super) fn verify(&self) -> Result<(), DataError> {
        self.verify_while(|_| true)
    }

    /// Like [`Self::verify`]. Calls `on_read` with the size of each block, and stops early with
    /// `Ok` when it returns false.
    fn verify_while(&self, on_read: impl Fn(usize) -> bool) -> Result<(), DataError> {
        let mut hasher = blake3::Hasher::new();
        for block in self.bytes.get(self.header_bytes..).unwrap_or_default().chunks(BLOCK_BYTES) {
            hasher.update(block);
            if !on_read(block.len()) {
                return Ok(());
            }
        }
        if hasher.finalize() == self.hash {
            return Ok(());
        }
        Err(CorpusError::WrongChecksum { path: self.path.clone(), remedy: self.remedy }.into())
    }

    /// Returns this file's line in the cache. `None` if the bytes are not a mapped file, or if it
    /// was written so shortly before `now` that another write could leave the same timestamps.
    fn cache_entry(&self, now: SystemTime) -> Option<String> {
        match &*self.bytes {
            Bytes::Mapped(file) if file.stat.is_settled(now) => {
                Some(format!("{} {}", blake3::Hash::from_bytes(self.hash).to_hex(), file.stat))
            }
            _ => None,
        }
    }
}

/// The state of a [`Verification`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    Running,
    Passed,
    /// The error message: which file is damaged, and what to do.
    Failed(String),
}

/// A running comparison of files with their checksums. Its threads stop soon after it is dropped.
#[derive(Debug)]
pub struct Verification {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    files: Vec<ChecksummedFile>,
    /// Index of the next file to read.
    next: AtomicUsize,
    read_bytes: AtomicU64,
    is_in_background: AtomicBool,
    is_cancelled: AtomicBool,
    state: Mutex<State>,
    thread_ended: Condvar,
    cache: Option<Cache>,
}

#[derive(Debug)]
struct State {
    /// Number of threads still reading.
    running: usize,
    failure: Option<String>,
}

impl Verification {
    /// Starts reading the files that are not in the cache in `cache_dir`. `now` is the current
    /// time of the system that stores the files.
    pub fn start(files: Vec<ChecksummedFile>, cache_dir: Option<&Path>, now: SystemTime) -> Self {
        let cache = cache_dir.and_then(|dir| Cache::read(dir, &files, now));
        let is_cached = |file: &ChecksummedFile| cache.as_ref().is_some_and(|cache| cache.contains(file));
        let files: Vec<ChecksummedFile> = files.into_iter().filter(|file| !is_cached(file)).collect();
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = files.len().min(cores).min(MAX_THREADS);
        let shared = Arc::new(Shared {
            files,
            next: AtomicUsize::new(0),
            read_bytes: AtomicU64::new(0),
            is_in_background: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            state: Mutex::new(State { running: threads, failure: None }),
            thread_ended: Condvar::new(),
            cache,
        });
        for thread in 0..threads {
            let worker = shared.clone();
            let work = move || worker.run_thread(thread);
            if std::thread::Builder::new().name(format!("checksum.{thread}")).spawn(work).is_err() {
                // If the thread cannot be started, its work is done here.
                shared.run_thread(thread);
            }
        }
        Verification { shared }
    }

    pub fn status(&self) -> Status {
        self.wait(Duration::ZERO)
    }

    /// Waits up to `timeout` for the result and returns the status.
    pub fn wait(&self, timeout: Duration) -> Status {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.state();
        loop {
            match &*state {
                State { failure: Some(failure), .. } => return Status::Failed(failure.clone()),
                State { running: 0, .. } => return Status::Passed,
                _ => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Status::Running;
            }
            let waited = self.shared.thread_ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Continues with one thread only, to free the other cores.
    pub fn continue_in_background(&self) {
        self.shared.is_in_background.store(true, Ordering::Relaxed);
    }

    pub fn read_bytes(&self) -> u64 {
        self.shared.read_bytes.load(Ordering::Relaxed)
    }

    /// Size of all files that have to be read, without those in the cache.
    pub fn total_bytes(&self) -> u64 {
        self.shared.files.iter().map(|file| file.bytes.len().saturating_sub(file.header_bytes) as u64).sum()
    }
}

impl Drop for Verification {
    fn drop(&mut self) {
        self.shared.is_cancelled.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Body of one thread: reads files until none is left.
    fn run_thread(&self, thread: usize) {
        let is_active = || !self.is_cancelled.load(Ordering::Relaxed);
        let on_read = |bytes: usize| {
            self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            is_active()
        };
        let mut failure = None;
        while is_active() && failure.is_none() && (thread == 0 || !self.is_in_background.load(Ordering::Relaxed)) {
            let Some(file) = self.files.get(self.next.fetch_add(1, Ordering::Relaxed)) else { break };
            failure = file.verify_while(on_read).err();
        }
        // The last thread writes the cache before it reports that all files passed.
        let is_last = matches!(*self.state(), State { running: 1, failure: None }) && failure.is_none();
        if let Some(cache) = self.cache.as_ref().filter(|_| is_last && is_active()) {
            cache.add(&self.files);
        }
        let mut state = self.state();
        state.running -= 1;
        if let Some(failure) = failure {
            state.failure.get_or_insert(failure.to_string());
            self.is_cancelled.store(true, Ordering::Relaxed);
        }
        self.thread_ended.notify_all();
    }
}

/// The cache of verified files: one text file per data directory, with one line per file.
#[derive(Debug)]
struct Cache {
    path: PathBuf,
    /// Entries of the files that have not changed.
    valid: HashSet<String>,
    now: SystemTime,
}

impl Cache {
    /// Reads the cache. An unreadable cache counts as empty.
    fn read(dir: &Path, files: &[ChecksummedFile], now: SystemTime) -> Option<Self> {
        let data_dir = std::path::absolute(files.first()?.path.parent()?).ok()?;
        let name = blake3::hash(data_dir.as_os_str().as_encoded_bytes()).to_hex();
        let path = dir.join(&name[..16]);
        let is_ours = fs::metadata(&path).is_ok_and(|file| file.len() <= MAX_CACHE_BYTES);
        let text = if is_ours { fs::read_to_string(&path).unwrap_or_default() } else { String::new() };
        let stored: HashSet<&str> = text.lines().collect();
        let entries = files.iter().filter_map(|file| file.cache_entry(now));
        let valid = entries.filter(|entry| stored.contains(entry.as_str())).collect();
        Some(Cache { path, valid, now })
    }

    fn contains(&self, file: &ChecksummedFile) -> bool {
        file.cache_entry(self.now).is_some_and(|entry| self.valid.contains(&entry))
    }

    /// Adds files that passed. Write errors are ignored: without a cache the next run only starts
    /// slower.
    fn add(&self, passed: &[ChecksummedFile]) {
        let entries: Vec<String> = passed.iter().filter_map(|file| file.cache_entry(self.now)).collect();
        if entries.is_empty() {
            return;
        }
        let text: String = self.valid.iter().chain(&entries).flat_map(|entry| [entry, "\n"]).collect();
        if self.path.parent().is_some_and(|dir| fs::create_dir_all(dir).is_ok()) {
            _ = write_atomic(&self.path, |file| file.write_all(text.as_bytes()));
        }
    }
}

/// Returns this user's cache directory: `$XDG_CACHE_HOME/hetseq/checksums`, by default in
/// `~/.cache`.
pub fn cache_dir() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(caches.join("hetseq").join("checksums"))
}
