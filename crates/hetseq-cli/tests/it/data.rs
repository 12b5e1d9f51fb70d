//! Training data of the tests, drawn once per test process, and the directory for all files of the
//! tests.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fs_err as fs;
use hetseq_data::LabelledImages;
use hetseq_data::source::{digits, idx};

/// An epoch has 15 updates of 100 samples; the last one has 70.
pub(crate) const TRAIN_SAMPLES: usize = 1470;
pub(crate) const UPDATES_PER_EPOCH: u64 = 15;
const TEST_SAMPLES: usize = 300;

/// A directory with the four idx files.
pub(crate) fn digits() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = scratch().join("digits");
        write(&dir, "train", &digits::draw(1, TRAIN_SAMPLES, 28).unwrap());
        write(&dir, "t10k", &digits::draw(2, TEST_SAMPLES, 28).unwrap());
        dir
    })
}

/// The directory `name` in [`scratch`], with a WordPiece vocabulary of these words.
pub(crate) fn corpus_dir<'a>(name: &str, words: impl IntoIterator<Item = &'a &'a str>) -> PathBuf {
    let dir = scratch().join(name);
    fs::create_dir_all(&dir).unwrap();
    const SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let vocabulary: Vec<&str> = SPECIAL.iter().chain(words).copied().collect();
    fs::write(dir.join("vocab.txt"), vocabulary.join("\n")).unwrap();
    dir
}

pub(crate) fn write(dir: &Path, split: &str, samples: &LabelledImages) {
    fs::create_dir_all(dir).unwrap();
    idx::write_images(&dir.join(format!("{split}-images-idx3-ubyte.gz")), &samples.images, true).unwrap();
    idx::write_labels(&dir.join(format!("{split}-labels-idx1-ubyte.gz")), &samples.labels, true).unwrap();
}

/// The directory of this test process. A test process cannot clean up at its end, so the next one
/// does.
pub(crate) fn scratch() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let all = Path::new(env!("CARGO_TARGET_TMPDIR"));
        for entry in fs::read_dir(all).unwrap().map(Result::unwrap) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_stale = |pid: &str| !Path::new("/proc").join(pid).exists();
            if name.strip_prefix("it-").is_some_and(is_stale) {
                // Another test process may remove it at the same time.
                _ = fs::remove_dir_all(entry.path());
            }
        }
        let dir = all.join(format!("it-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    })
}
