//! Tests of class folders: nested, linked, misspelt, with other files in between.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use hetseq_data::source::folder::{self, ClassFolders, ImageFiles, draw};
use hetseq_data::{DataError, DecodedImage};

fn touch(dir: &Path, names: &[&str]) {
    for name in names {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "some bytes").unwrap();
    }
}

fn open(dir: &Path) -> Result<ClassFolders, DataError> {
    folder::open(dir, &|_| {})
}

fn names(dir: &Path, files: &ImageFiles) -> Vec<(String, u32)> {
    let name = |i| files.path(i).unwrap().strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
    (0..files.len()).map(|i| (name(i), files.class(i).unwrap())).collect()
}

#[test]
fn classes_and_files_are_sorted_and_other_files_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    touch(
        dir,
        &["train/dog/b.JPG", "train/dog/a.png", "train/cat/deep/er/2.jpeg", "train/cat/z.jpg", "train/cat/10.jpg"],
    );
    touch(dir, &["train/cat/notes.txt", "train/cat/.hidden.jpg", "train/.cache/x.jpg", "train/readme.jpg"]);
    touch(dir, &["val/dog/1.png", "test/cow/1.png"]);
    let found = open(dir).unwrap();
    assert_eq!(found.classes, ["cat", "dog"]);
    let expected = [
        ("train/cat/10.jpg", 0),
        ("train/cat/deep/er/2.jpeg", 0),
        ("train/cat/z.jpg", 0),
        ("train/dog/a.png", 1),
        ("train/dog/b.JPG", 1),
    ];
    assert_eq!(names(dir, &found.train), expected.map(|(name, class)| (name.to_owned(), class)));
    // `val` before `test`, and the classes are those of the training images.
    assert_eq!(names(dir, &found.valid), [("val/dog/1.png".to_owned(), 1)]);
    assert_eq!((found.train.path(5), found.train.class(5)), (None, None));
}

#[test]
fn the_fingerprint_covers_names_and_sizes_but_not_the_directory() {
    let make = |change: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().unwrap();
        touch(dir.path(), &["train/a/1.png", "train/a/2.png", "train/b/3.png", "valid/a/4.png"]);
        change(dir.path());
        open(dir.path()).unwrap().fingerprint().to_owned()
    };
    let plain = make(&|_| {});
    assert_eq!(plain.len(), 16);
    assert_eq!(make(&|dir| touch(dir, &["train/a/notes.txt"])), plain);
    let changes: [&dyn Fn(&Path); 5] = [
        &|dir| fs::write(dir.join("train/a/1.png"), "other size").map(|()| touch(dir, &["train/a/5.png"])).unwrap(),
        &|dir| fs::write(dir.join("train/a/1.png"), "longer than before").unwrap(),
        &|dir| fs::rename(dir.join("train/a/1.png"), dir.join("train/a/0.png")).unwrap(),
        &|dir| fs::rename(dir.join("train/a/2.png"), dir.join("train/b/2.png")).unwrap(),
        &|dir| fs::rename(dir.join("train/b"), dir.join("train/c")).unwrap(),
    ];
    for change in changes {
        assert_ne!(make(change), plain);
    }
}

#[test]
fn missing_and_unknown_classes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let refused = || open(dir).unwrap_err().to_string();
    assert!(refused().contains("has no folder `train`"), "{}", refused());
    fs::create_dir(dir.join("train")).unwrap();
    touch(dir, &["train/loose.png"]);
    assert!(refused().contains("train holds no class folders"), "{}", refused());
    touch(dir, &["train/cat/notes.txt"]);
    assert!(refused().contains("train/cat holds no PNG or JPEG files (1 others)"), "{}", refused());
    touch(dir, &["train/cat/1.png"]);
    assert_eq!(open(dir).unwrap().valid.len(), 0);
    touch(dir, &["valid/cta/1.png"]);
    assert!(refused().contains("valid/cta is a class that the training images in"), "{}", refused());
}

#[test]
fn links_are_followed_but_not_in_loops() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (dir, elsewhere) = (dir.path(), elsewhere.path());
    touch(elsewhere, &["cats/1.png", "cats/2.png", "extra/3.png"]);
    fs::create_dir(dir.join("train")).unwrap();
    symlink(elsewhere.join("cats"), dir.join("train/cat")).unwrap();
    symlink(elsewhere.join("extra"), elsewhere.join("cats/more")).unwrap();
    symlink(elsewhere.join("cats/1.png"), elsewhere.join("extra/again.png")).unwrap();
    assert_eq!(open(dir).unwrap().train.len(), 4);
    // A loop over another folder: cat -> more -> back.
    symlink(elsewhere.join("cats"), elsewhere.join("extra/back")).unwrap();
    let error = open(dir).unwrap_err();
    assert!(matches!(&error, DataError::LinkLoop { path } if path.ends_with("train/cat/more/back")), "{error}");
    fs::remove_file(elsewhere.join("extra/back")).unwrap();
    symlink("nowhere", elsewhere.join("extra/5.png")).unwrap();
    assert!(open(dir).unwrap_err().to_string().contains("train/cat/more/5.png"));
}

#[test]
fn synthetic_folders_are_reproducible_and_readable() {
    let make = |seed| {
        let dir = tempfile::tempdir().unwrap();
        draw::write(&dir.path().join("train"), seed, 40).unwrap();
        draw::write(&dir.path().join("valid"), !seed, 15).unwrap();
        dir
    };
    let (first, again, other) = (make(1), make(1), make(2));
    let found = open(first.path()).unwrap();
    assert_eq!((found.classes.len(), found.train.len(), found.valid.len()), (10, 40, 15));
    let mut formats = [0, 0];
    for i in 0..40 {
        let path = found.train.path(i).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes, fs::read(again.path().join(path.strip_prefix(first.path()).unwrap())).unwrap());
        let image = DecodedImage::read(&path).unwrap();
        assert!((40..=64).contains(&image.width) && (40..=64).contains(&image.height));
        formats[usize::from(path.extension().unwrap() == "png")] += 1;
    }
    assert_eq!(formats, [20, 20]);
    assert_ne!(found.fingerprint(), open(other.path()).unwrap().fingerprint());
}
