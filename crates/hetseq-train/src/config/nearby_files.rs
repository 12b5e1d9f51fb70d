//! The message about a config file that does not exist: names similar ones, and those that are
//! there. Called by `file.rs`.

use std::path::{Path, PathBuf};

use fs_err as fs;

use super::names::nearest;

/// Entries of a directory to look at, and configs to list.
const MAX_ENTRIES: usize = 500;
const MAX_LISTED: usize = 6;
/// The part of a file in which a config has its first section.
const HEAD_BYTES: u64 = 64 << 10;

pub(super) fn no_config(path: &Path) -> String {
    let parent = parent_of(path);
    let what = match path.file_name() {
        Some(name) if name == "config.toml" && parent.is_dir() => {
            format!("{} has no config.toml, so it is not the directory of a run", parent.display())
        }
        _ => format!("there is no config file `{}`", path.display()),
    };
    let mut found = configs_in(&parent);
    if found.is_empty() {
        // The directory may have a similar name.
        let beside = directories_in(&parent_of(&parent));
        found = beside.iter().flat_map(|dir| configs_in(dir)).collect();
    }
    let names: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
    let wanted = path.display().to_string();
    match nearest(&wanted, names.iter().map(String::as_str)).filter(|(similarity, _)| *similarity >= 0.7) {
        Some((_, name)) => format!("{what}. Did you mean `{name}`?"),
        None if names.is_empty() => format!("{what}; pass the TOML file of a run, or a run directory"),
        None => {
            let more = if names.len() > MAX_LISTED { ", ..." } else { "" };
            let listed: Vec<&str> = names.iter().map(String::as_str).take(MAX_LISTED).collect();
            format!("{what}. Configs nearby: {}{more}", listed.join(", "))
        }
    }
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The configs of runs in a directory, sorted.
fn configs_in(dir: &Path) -> Vec<PathBuf> {
    let is_toml = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "toml");
    entries(dir).into_iter().filter(|path| is_toml(path) && is_config(path)).collect()
}

fn directories_in(dir: &Path) -> Vec<PathBuf> {
    entries(dir).into_iter().filter(|path| path.is_dir()).collect()
}

/// The entries of a directory that are not hidden, as a user would write them. None if it cannot be
/// read.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let names = entries.take(MAX_ENTRIES).filter_map(|entry| Some(entry.ok()?.file_name()));
    let names = names.filter(|name| !name.to_string_lossy().starts_with('.'));
    let mut paths: Vec<PathBuf> =
        names.map(|name| if dir == Path::new(".") { PathBuf::from(name) } else { dir.join(name) }).collect();
    paths.sort();
    paths
}

/// Whether a TOML file is the config of a run, not that of another program.
fn is_config(path: &Path) -> bool {
    use std::io::Read;
    let mut head = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    read.is_ok() && String::from_utf8_lossy(&head).lines().any(|line| line.trim() == "[run]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_and_other_configs_are_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("configs")).unwrap();
        for (name, text) in [("configs/mnist.toml", "[run]\n"), ("configs/bert.toml", "[run]\n"), ("Cargo.toml", "")] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let message = |name: &str| no_config(&dir.path().join(name)).replace(&dir.path().display().to_string(), "DIR");
        let expected = "there is no config file `DIR/config/mnist.toml`. Did you mean `DIR/configs/mnist.toml`?";
        assert_eq!(message("config/mnist.toml"), expected);
        let expected = "there is no config file `DIR/configs/mnsit.toml`. Did you mean `DIR/configs/mnist.toml`?";
        assert_eq!(message("configs/mnsit.toml"), expected);
        let unlike = no_config(Path::new("/nowhere/at/all/x.toml"));
        assert_eq!(
            unlike,
            "there is no config file `/nowhere/at/all/x.toml`; pass the TOML file of a run, or a run directory"
        );
        assert!(message("config.toml").starts_with("DIR has no config.toml, so it is not the directory of a run"));
    }
}
