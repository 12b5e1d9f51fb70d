//! What the tests of both preparations share: interruptions, and comparing the written bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use hetseq_data::prep::PrepObserver;

/// Stops a preparation after a number of polls.
pub(crate) struct StopAfter(AtomicUsize);

impl StopAfter {
    pub(crate) fn new(polls: usize) -> Self {
        StopAfter(AtomicUsize::new(polls))
    }

    pub(crate) fn never() -> Self {
        Self::new(usize::MAX)
    }
}

impl PrepObserver for StopAfter {
    fn begin(&self, _what: &str, _bytes: u64) {}

    fn progress(&self, _bytes: u64) {}

    fn is_stopped(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
    }
}

/// The files of a directory: names and bytes.
pub(crate) fn content(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())).collect()
}

/// Checks that a preparation writes the same bytes on one core and on several. `prepare` gets the
/// number of cores and returns its output directory.
pub(crate) fn assert_same_on_any_cores(prepare: impl Fn(usize) -> PathBuf + Sync) {
    let [one, several] = [1, 5].map(|cores| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(cores).build().unwrap();
        content(&pool.install(|| prepare(cores)))
    });
    assert!(one.len() > 6, "{:?}", one.keys());
    assert!(one == several, "{:?} and {:?}", one.keys(), several.keys());
}
