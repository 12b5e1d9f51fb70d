//! Walks class folders, in parallel. Links are followed; a link that leads back to where it lies in is an error.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fs_err as fs;
use rayon::prelude::*;

use super::compare;
use crate::error::DataError;

pub(super) struct Class {
    pub(super) name: OsString,
    /// Sorted by name, folder by folder; never empty.
    pub(super) files: Vec<File>,
}

pub(super) struct File {
    /// From the split's folder on, the class included.
    pub(super) path: Box<Path>,
    pub(super) bytes: u64,
}

/// The names of the folders in `dir`, sorted. Hidden ones are no classes.
pub(super) fn folders(dir: &Path) -> Result<Vec<OsString>, DataError> {
    let mut names = Vec::new();
    for entry in entries(dir)? {
        if matches!(entry.kind, Kind::Folder { .. }) {
            names.push(entry.name);
        }
    }
    Ok(names)
}

/// All picture files in the folder `name` of `root`, also in folders inside it.
pub(super) fn class(root: &Path, name: OsString, progress: &Progress<'_>) -> Result<Class, DataError> {
    let mut walk = Walk { root, progress, files: Vec::new(), others: 0, above: Vec::new() };
    walk.folder(Path::new(&name), true)?;
    if walk.files.is_empty() {
        return Err(DataError::EmptyClass { dir: root.join(&name), other_files: walk.others });
    }
    Ok(Class { name, files: walk.files })
}

struct Walk<'a> {
    root: &'a Path,
    progress: &'a Progress<'a>,
    files: Vec<File>,
    others: usize,
    /// Where the folders really are that lead to this one.
    above: Vec<PathBuf>,
}

impl Walk<'_> {
    fn folder(&mut self, path: &Path, is_link: bool) -> Result<(), DataError> {
        let dir = self.root.join(path);
        // Only a link can lead back up, but then to any folder above.
        let real = fs::canonicalize(&dir).map_err(|reason| DataError::Io { path: dir.clone(), reason })?;
        if is_link && self.above.contains(&real) {
            return Err(DataError::LinkLoop { path: dir });
        }
        self.above.push(real);
        let mut pictures = Vec::new();
        for entry in entries(&dir)? {
            match entry.kind {
                Kind::Folder { is_link } => {
                    self.add(path, &mut pictures)?;
                    self.folder(&path.join(&entry.name), is_link)?;
                }
                Kind::File { .. } if is_picture(&entry.name) => pictures.push(entry),
                Kind::File { .. } => self.others += 1,
            }
        }
        self.add(path, &mut pictures)?;
        self.above.pop();
        Ok(())
    }

    /// Looks up the sizes of the files collected so far. In parallel: on a network file system each costs a round trip.
    fn add(&mut self, folder: &Path, pictures: &mut Vec<Entry>) -> Result<(), DataError> {
        let progress = self.progress;
        let sized = |picture: Entry| {
            let bytes = picture.bytes()?;
            progress.found_one();
            Ok(File { path: folder.join(picture.name).into_boxed_path(), bytes })
        };
        let found: Vec<Result<File, DataError>> = std::mem::take(pictures).into_par_iter().map(sized).collect();
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
        // From its folder on, where that is possible: walking the whole path again takes longer than the look itself.
        let metadata = match self.kind {
            Kind::File { is_link: false } => self.handle.metadata(),
            _ => fs::metadata(self.handle.path()),
        };
        Ok(metadata.map_err(|reason| DataError::Io { path: self.handle.path(), reason })?.len())
    }
}

/// What is in `dir`, sorted by name, without what is hidden (`.DS_Store`, `._x.jpg`). A link counts as what it leads to; one
/// that leads nowhere as a file, so that it is named when its turn comes.
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

fn is_picture(name: &OsString) -> bool {
    let ending = Path::new(name).extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ["png", "jpg", "jpeg"].iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

/// Tells somebody who waits how far the listing is.
pub(super) struct Progress<'a> {
    found: AtomicUsize,
    last: Mutex<Instant>,
    every: Duration,
    say: &'a (dyn Fn(usize) + Sync),
}

pub(super) const SAY_EVERY: Duration = Duration::from_secs(2);
/// Looking at the clock for each file would take longer than listing it.
const LOOK_EVERY: usize = 64;

impl<'a> Progress<'a> {
    pub(super) fn new(every: Duration, say: &'a (dyn Fn(usize) + Sync)) -> Self {
        Progress { found: AtomicUsize::new(0), last: Mutex::new(Instant::now()), every, say }
    }

    fn found_one(&self) {
        let found = self.found.fetch_add(1, Ordering::Relaxed) + 1;
        if !found.is_multiple_of(LOOK_EVERY) {
            return;
        }
        // Who finds it taken knows that another thread is just saying it.
        if let Ok(mut last) = self.last.try_lock()
            && last.elapsed() >= self.every
        {
            *last = Instant::now();
            (self.say)(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told_now_and_then() {
        for (every, expected) in [(Duration::ZERO, vec![64, 128, 192]), (SAY_EVERY, vec![])] {
            let said = Mutex::new(Vec::new());
            let say = |found| said.lock().unwrap().push(found);
            let progress = Progress::new(every, &say);
            (0..200).for_each(|_| progress.found_one());
            assert_eq!(*said.lock().unwrap(), expected);
        }
    }
}
