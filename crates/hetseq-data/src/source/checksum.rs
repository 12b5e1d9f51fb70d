//! Mapped files against the checksums in their headers: on threads of their own, since reading a large corpus takes minutes.
//!
//! Files are equal on two machines only if their content is, and headers cannot tell: a damaged shard has the header that it
//! was written with. So a run compares all of them when it starts. What has passed is noted in a file of the user's cache with
//! what the system says of the file (size, times, inode, device), and is not read again until that changes.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use fs_err as fs;

use super::bytes::{Bytes, write_whole};
use crate::error::{CorpusError, DataError};

/// Hashed at a time: between two parts a thread looks whether it is still needed.
const PART_BYTES: usize = 8 << 20;
/// More threads than this do not read faster from any disk.
const MOST_THREADS: usize = 8;
/// A larger cache is not one of ours.
const MOST_CACHE_BYTES: u64 = 64 << 20;

/// A file and the BLAKE3 of what comes after its header.
#[derive(Clone)]
pub struct Sealed {
    path: PathBuf,
    bytes: Arc<Bytes>,
    header_bytes: usize,
    hash: [u8; 32],
    /// What to do if it is damaged.
    remedy: &'static str,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("path", &self.path).field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Sealed {
    pub(super) fn new(
        path: &Path,
        bytes: &Arc<Bytes>,
        header_bytes: usize,
        hash: [u8; 32],
        remedy: &'static str,
    ) -> Self {
        Sealed { path: path.to_owned(), bytes: bytes.clone(), header_bytes, hash, remedy }
    }

    /// Reads everything.
    pub(super) fn verify(&self) -> Result<(), DataError> {
        self.verify_while(|_| true)
    }

    /// Reads everything for as long as `has_read`, which is called with the size of each part, says so.
    fn verify_while(&self, has_read: impl Fn(usize) -> bool) -> Result<(), DataError> {
        let mut hasher = blake3::Hasher::new();
        for part in self.bytes.get(self.header_bytes..).unwrap_or_default().chunks(PART_BYTES) {
            hasher.update(part);
            if !has_read(part.len()) {
                return Ok(());
            }
        }
        if hasher.finalize() == self.hash {
            return Ok(());
        }
        Err(CorpusError::WrongChecksum { path: self.path.clone(), remedy: self.remedy }.into())
    }

    /// As the cache notes it; none if it is no file, or one that was written so shortly before `now` that another write would
    /// leave no trace in its times.
    fn note(&self, now: SystemTime) -> Option<String> {
        match &*self.bytes {
            Bytes::Mapped(file) if file.stamp.is_settled(now) => {
                Some(format!("{} {}", blake3::Hash::from_bytes(self.hash).to_hex(), file.stamp))
            }
            _ => None,
        }
    }
}

/// How far a [`Verification`] is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    Running,
    Passed,
    /// Which file is damaged, and what to do.
    Failed(String),
}

/// Files that are being compared with their checksums. Threads end soon after it is dropped.
#[derive(Debug)]
pub struct Verification {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    files: Vec<Sealed>,
    /// The first file that no thread has begun.
    next: AtomicUsize,
    read_bytes: AtomicU64,
    is_in_background: AtomicBool,
    is_cancelled: AtomicBool,
    state: Mutex<State>,
    has_ended: Condvar,
    cache: Option<Cache>,
}

#[derive(Debug)]
struct State {
    /// Threads that still read.
    running: usize,
    failure: Option<String>,
}

impl Verification {
    /// Starts to read the files that the cache in `cache_dir` does not know. `now` is the time of the system that holds them.
    pub fn start(files: Vec<Sealed>, cache_dir: Option<&Path>, now: SystemTime) -> Self {
        let cache = cache_dir.and_then(|dir| Cache::read(dir, &files, now));
        let is_known = |file: &Sealed| cache.as_ref().is_some_and(|cache| cache.knows(file));
        let files: Vec<Sealed> = files.into_iter().filter(|file| !is_known(file)).collect();
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = files.len().min(cores).min(MOST_THREADS);
        let shared = Arc::new(Shared {
            files,
            next: AtomicUsize::new(0),
            read_bytes: AtomicU64::new(0),
            is_in_background: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            state: Mutex::new(State { running: threads, failure: None }),
            has_ended: Condvar::new(),
            cache,
        });
        for thread in 0..threads {
            let theirs = shared.clone();
            let work = move || theirs.work(thread);
            if std::thread::Builder::new().name(format!("checksum.{thread}")).spawn(work).is_err() {
                // Where no thread can be had, it is done here and now.
                shared.work(thread);
            }
        }
        Verification { shared }
    }

    pub fn status(&self) -> Status {
        self.wait(Duration::ZERO)
    }

    /// What is known after `limit`, or earlier if there is nothing more to wait for.
    pub fn wait(&self, limit: Duration) -> Status {
        let until = Instant::now() + limit;
        let mut state = self.shared.state();
        loop {
            match &*state {
                State { failure: Some(failure), .. } => return Status::Failed(failure.clone()),
                State { running: 0, .. } => return Status::Passed,
                _ => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Status::Running;
            }
            let waited = self.shared.has_ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// From now on one thread reads, so that the others' cores are free.
    pub fn continue_in_background(&self) {
        self.shared.is_in_background.store(true, Ordering::Relaxed);
    }

    pub fn read_bytes(&self) -> u64 {
        self.shared.read_bytes.load(Ordering::Relaxed)
    }

    /// Of the files that had to be read.
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

    /// One thread: file after file, until none is left.
    fn work(&self, thread: usize) {
        let is_needed = || !self.is_cancelled.load(Ordering::Relaxed);
        let has_read = |bytes: usize| {
            self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            is_needed()
        };
        let mut failure = None;
        while is_needed() && failure.is_none() && (thread == 0 || !self.is_in_background.load(Ordering::Relaxed)) {
            let Some(file) = self.files.get(self.next.fetch_add(1, Ordering::Relaxed)) else { break };
            failure = file.verify_while(has_read).err();
        }
        // The last thread writes the cache, before it says that all have passed.
        let is_last = matches!(*self.state(), State { running: 1, failure: None }) && failure.is_none();
        if let Some(cache) = self.cache.as_ref().filter(|_| is_last && is_needed()) {
            cache.add(&self.files);
        }
        let mut state = self.state();
        state.running -= 1;
        if let Some(failure) = failure {
            state.failure.get_or_insert(failure.to_string());
            self.is_cancelled.store(true, Ordering::Relaxed);
        }
        self.has_ended.notify_all();
    }
}

/// Notes of files that have passed: a text file for each directory, with a line for each of its files.
#[derive(Debug)]
struct Cache {
    path: PathBuf,
    /// Of the files that are still as they were.
    known: HashSet<String>,
    now: SystemTime,
}

impl Cache {
    /// A cache that cannot be read knows nothing.
    fn read(dir: &Path, files: &[Sealed], now: SystemTime) -> Option<Self> {
        let of = std::path::absolute(files.first()?.path.parent()?).ok()?;
        let name = blake3::hash(of.as_os_str().as_encoded_bytes()).to_hex();
        let path = dir.join(&name[..16]);
        let is_ours = fs::metadata(&path).is_ok_and(|file| file.len() <= MOST_CACHE_BYTES);
        let text = if is_ours { fs::read_to_string(&path).unwrap_or_default() } else { String::new() };
        let noted: HashSet<&str> = text.lines().collect();
        let notes = files.iter().filter_map(|file| file.note(now));
        let known = notes.filter(|note| noted.contains(note.as_str())).collect();
        Some(Cache { path, known, now })
    }

    fn knows(&self, file: &Sealed) -> bool {
        file.note(self.now).is_some_and(|note| self.known.contains(&note))
    }

    /// Without a cache everything works, only slower: what cannot be written is not noted.
    fn add(&self, passed: &[Sealed]) {
        let notes: Vec<String> = passed.iter().filter_map(|file| file.note(self.now)).collect();
        if notes.is_empty() {
            return;
        }
        let text: String = self.known.iter().chain(&notes).flat_map(|note| [note, "\n"]).collect();
        if self.path.parent().is_some_and(|dir| fs::create_dir_all(dir).is_ok()) {
            _ = write_whole(&self.path, |file| file.write_all(text.as_bytes()));
        }
    }
}

/// Where the notes of this user are kept: `$XDG_CACHE_HOME/hetseq/checksums`, else in `~/.cache`.
pub fn cache_dir() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(caches.join("hetseq").join("checksums"))
}
