//! Small files of a run directory (the config, what was measured): each is whole or not there.

use std::io;
use std::path::Path;

use fs_err as fs;

/// Puts `bytes` in the place of what `dir/name` was.
pub(crate) fn replace(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = dir.join(format!(".{name}"));
    fs::write(&temporary, bytes)?;
    fs::rename(temporary, dir.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_file_stays_until_the_new_one_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        replace(dir.path(), "a.json", b"old").unwrap();
        replace(dir.path(), "a.json", b"new").unwrap();
        assert_eq!(std::fs::read(dir.path().join("a.json")).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        std::fs::create_dir(dir.path().join(".b.json")).unwrap();
        assert!(replace(dir.path(), "b.json", b"x").is_err());
        assert!(!dir.path().join("b.json").exists());
    }
}
