//! Lists the image files in class folders, in parallel. Symbolic links are followed; a link to a
//! folder that contains it is an error. Called by [`folder`](super).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fs_err as fs;
use rayon::prelude::*;

use super::compare;
use crate::error::DataError;

pub(super) struct ImageClass {
    pub(super) name: OsString,
    /// Sorted by name, folder by folder. Never empty.
    pub(super) files: Vec<ImageFile>,
}

pub(super) struct ImageFile {
    /// Relative to the split's folder, so it begins with the class.
    pub(super) path: Box<Path>,
    pub(super) bytes: u64,
}

/// Returns the names of the folders in `dir`, sorted, without hidden ones.
pub(super) fn folders(dir: &Path) -> Result<Vec<OsString>, DataError> {
    let mut names = Vec::new();
    for entry in entries(dir)? {
        if matches!(entry.kind, Kind::Folder { .. }) {
            names.push(entry.name);
        }
    }
    Ok(names)
}

/// Lists all image files in the folder `name` of `root`, recursively.
pub(super) fn class(root: &Path, name: OsString, progress: &ListingProgress<'_>) -> Result<ImageClass, DataError> {
    let mut walk = Walk { root, progress, files: Vec::new(), other_files: 0, parents: Vec::new() };
    walk.folder(Path::new(&name), true)?;
    if walk.files.is_empty() {
        return Err(DataError::EmptyClass { dir: root.join(&name), other_files: walk.other_files });
    }
    Ok(ImageClass { name, files: walk.files })
}

struct Walk<'a> {
    root: &'a Path,
    progress: &'a ListingProgress<'a>,
    files: Vec<ImageFile>,
    other_files: usize,
    /// Canonical paths of the folders on the way to the current one.
    parents: Vec<PathBuf>,
}

impl Walk<'_> {
    fn folder(&mut self, path: &Path, is_link: bool) -> Result<(), DataError> {
        let dir = self.root.join(path);
        // Only a link can form a loop, and it may point to any parent.
        let canonical = fs::canonicalize(&dir).map_err(|reason| DataError::Io { path: dir.clone(), reason })?;
        if is_link && self.parents.contains(&canonical) {
            return Err(DataError::LinkLoop { path: dir });
        }
        self.parents.push(canonical);
        let mut images = Vec::new();
        for entry in entries(&dir)? {
            match entry.kind {
                Kind::Folder { is_link } => {
                    self.add(path, &mut images)?;
                    self.folder(&path.join(&entry.name), is_link)?;
                }
                Kind::File { .. } if is_image(&entry.name) => images.push(entry),
                Kind::File { .. } => self.other_files += 1,
            }
        }
        self.add(path, &mut images)?;
        self.parents.pop();
        Ok(())
    }

    /// Looks up the sizes of the files collected so far, in parallel: on a network file system each
    /// lookup is a round trip.
    fn add(&mut self, folder: &Path, images: &mut Vec<Entry>) -> Result<(), DataError> {
        let progress = self.progress;
        let with_size = |image: Entry| {
            let bytes = image.bytes()?;
            progress.count_file();
            Ok(ImageFile { path: folder.join(image.name).into_boxed_path(), bytes })
        };
        let found: Vec<Result<ImageFile, DataError>> = std::mem::take(images).into_par_iter().map(with_size).collect();
        for file in found {
            self.files.push(file?);
        }
        Ok(())
    }
}

struct Entry {
    name: OsString,
    kind: Kind,
    handle: fs::DirEntry,
}

#[derive(Clone, Copy)]
enum Kind {
    File { is_link: bool },
    Folder { is_link: bool },
}

impl Entry {
    fn bytes(&self) -> Result<u64, DataError> {
        // `DirEntry::metadata` does not resolve the whole path again, which takes longer than the
        // lookup itself.
        let metadata = match self.kind {
            Kind::File { is_link: false } => self.handle.metadata(),
            _ => fs::metadata(self.handle.path()),
        };
        Ok(metadata.map_err(|reason| DataError::Io { path: self.handle.path(), reason })?.len())
    }
}

/// Returns the entries of `dir`, sorted by name, without hidden ones (`.DS_Store`, `._x.jpg`). A
/// link counts as its target; a broken one counts as a file, so that the lookup of its size names
/// it.
fn entries(dir: &Path) -> Result<Vec<Entry>, DataError> {
    let unreadable = |reason| DataError::Io { path: dir.to_owned(), reason };
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let file_type = entry.file_type().map_err(unreadable)?;
        let is_link = file_type.is_symlink();
        let is_folder = if is_link { entry.path().is_dir() } else { file_type.is_dir() };
        let kind = if is_folder { Kind::Folder { is_link } } else { Kind::File { is_link } };
        entries.push(Entry { name, kind, handle: entry });
    }
    entries.sort_unstable_by(|a, b| compare(&a.name, &b.name));
    Ok(entries)
}

fn is_image(name: &OsString) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| ["png", "jpg", "jpeg"].iter().any(|known| extension.eq_ignore_ascii_case(known)))
}

/// Reports the number of files listed so far, at intervals.
pub(super) struct ListingProgress<'a> {
    found: AtomicUsize,
    last_report: Mutex<Instant>,
    interval: Duration,
    report: &'a (dyn Fn(usize) + Sync),
}

pub(super) const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// Files per check of the clock, because a check for each file would take longer than listing it.
const FILES_PER_CHECK: usize = 64;

impl<'a> ListingProgress<'a> {
    pub(super) fn new(interval: Duration, report: &'a (dyn Fn(usize) + Sync)) -> Self {
        ListingProgress { found: AtomicUsize::new(0), last_report: Mutex::new(Instant::now()), interval, report }
    }

    fn count_file(&self) {
        let found = self.found.fetch_add(1, Ordering::Relaxed) + 1;
        if !found.is_multiple_of(FILES_PER_CHECK) {
            return;
        }
        // If the lock is taken, another thread is reporting.
        if let Ok(mut last_report) = self.last_report.try_lock()
            && last_report.elapsed() >= self.interval
        {
            *last_report = Instant::now();
            (self.report)(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_reported_at_intervals() {
        for (interval, expected) in [(Duration::ZERO, vec![64, 128, 192]), (REPORT_INTERVAL, vec![])] {
            let reported = Mutex::new(Vec::new());
            let report = |found| reported.lock().unwrap().push(found);
            let progress = ListingProgress::new(interval, &report);
            (0..200).for_each(|_| progress.count_file());
            assert_eq!(*reported.lock().unwrap(), expected);
        }
    }
}
