//! Notices: files through which processes that share a directory find a leader. Each leader posts
//! one with its addresses and, unless a secret was given to all ranks, the secret.
//!
//! Files only. A notice appears and is replaced atomically (`secret_file.rs`), and only its owner
//! can read it. It does not show whether its leader is still alive. `directory.rs` and
//! `leader_search.rs` use this.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::lock::locked;
use crate::secret_file::{read_private, write_private};

/// How many addresses of one machine are tried at most.
const ADDRESSES_LIMIT: usize = 12;

/// Decides which of several leaders all processes join: the lowest value. A process that was
/// started as rank 0 comes before one that may have any rank.
pub(super) type LeaderPriority = (bool, u64);

/// The content of a notice.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notice {
    /// Random; also in the file name.
    pub(super) id: u64,
    /// Whether the leader was started as rank 0.
    pub(super) is_rank_0: bool,
    pub(super) host: String,
    pub(super) addresses: Vec<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<String>,
}

impl Notice {
    pub(super) fn priority(&self) -> LeaderPriority {
        (!self.is_rank_0, self.id)
    }

    /// The leader's name and addresses, for messages.
    pub(super) fn shown(&self) -> String {
        let at: Vec<String> = self.addresses.iter().map(SocketAddr::to_string).collect();
        format!("{} ({})", super::handshake::shown_name(&self.host), at.join(", "))
    }
}

/// Written by hand so that the secret never reaches a log.
impl std::fmt::Debug for Notice {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Notice({:016x}, {}, rank 0: {})", self.id, self.shown(), self.is_rank_0)
    }
}

fn path_of(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("meeting-{id:016x}.json"))
}

fn id_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("meeting-")?.strip_suffix(".json")?, 16).ok()
}

/// Returns all readable notices, in order of priority, and what is wrong with the others.
pub(super) fn list(dir: &Path) -> (Vec<Notice>, Vec<String>) {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => return (Vec::new(), vec![error.to_string()]),
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let ids: BTreeSet<u64> = names.filter_map(|name| id_of(&name)).collect();
    let (mut notices, mut problems) = (Vec::new(), Vec::new());
    for id in ids {
        let path = path_of(dir, id);
        match read_private(&path).and_then(|text| parse(&text, id)) {
            Ok(notice) => notices.push(notice),
            // Removed since the directory was listed.
            Err(_) if !path.exists() => {}
            Err(why) => problems.push(format!("{}: {why}", path.display())),
        }
    }
    notices.sort_by_key(Notice::priority);
    (notices, problems)
}

fn parse(text: &str, id: u64) -> Result<Notice, String> {
    let mut notice: Notice =
        serde_json::from_str(text).map_err(|error| format!("it is not a valid notice: {error}"))?;
    if notice.id != id {
        return Err("the ids in its name and in its content differ".to_owned());
    }
    notice.addresses.truncate(ADDRESSES_LIMIT);
    Ok(notice)
}

/// Removes the notice of a leader that does not answer. A leader that is alive after all posts its
/// notice again.
pub(super) fn remove(dir: &Path, id: u64) {
    // Fails if another rank removed it first.
    _ = fs::remove_file(path_of(dir, id));
}

/// This process's own notice; removed on drop.
pub(super) struct PostedNotice {
    path: PathBuf,
    content: Vec<u8>,
    /// Prevents `restore` from posting it again during the drop.
    is_posted: Mutex<bool>,
}

impl PostedNotice {
    pub(super) fn post(dir: &Path, notice: &Notice) -> Result<PostedNotice, String> {
        let mut notice = notice.clone();
        notice.addresses.truncate(ADDRESSES_LIMIT);
        let content = serde_json::to_vec_pretty(&notice).map_err(|error| error.to_string())?;
        let path = path_of(dir, notice.id);
        write_private(&path, &content)?;
        Ok(PostedNotice { path, content, is_posted: Mutex::new(true) })
    }

    /// Posts the notice again if it was removed, by a rank that could not reach this one or by a
    /// user.
    pub(super) fn restore(&self) {
        let is_posted = locked(&self.is_posted);
        if *is_posted && !self.path.exists() {
            // The next scan retries if this fails.
            _ = write_private(&self.path, &self.content);
        }
    }
}

impl Drop for PostedNotice {
    fn drop(&mut self) {
        *locked(&self.is_posted) = false;
        _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;

    fn notice(id: u64, is_rank_0: bool) -> Notice {
        let addresses = vec!["10.0.0.1:700".parse().unwrap(), "[fd00::1]:700".parse().unwrap()];
        Notice { id, is_rank_0, host: "alpha".to_owned(), addresses, secret: Some("squirrel".to_owned()) }
    }

    #[test]
    fn notices_are_listed_in_order_and_removed_on_drop() {
        let dir = TempDir::new().unwrap();
        let notices = [notice(7, false), notice(3, false), notice(9, true)];
        let posted: Vec<PostedNotice> =
            notices.iter().map(|notice| PostedNotice::post(dir.path(), notice).unwrap()).collect();
        let (found, problems) = list(dir.path());
        assert_eq!(found, [notice(9, true), notice(3, false), notice(7, false)]);
        assert!(problems.is_empty(), "{problems:?}");
        assert!(!format!("{found:?}").contains("squirrel"), "{found:?}");
        // Removed by another rank, and posted again by its owner.
        remove(dir.path(), 3);
        assert_eq!(list(dir.path()).0.len(), 2);
        posted.iter().for_each(PostedNotice::restore);
        assert_eq!(list(dir.path()).0.len(), 3);
        drop(posted);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn invalid_and_foreign_files_are_left_out() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        write_private(&path_of(dir.path(), 1), b"{").unwrap();
        write_private(&path_of(dir.path(), 2), &serde_json::to_vec(&notice(5, true)).unwrap()).unwrap();
        write_private(&path_of(dir.path(), 3), &serde_json::to_vec(&notice(3, true)).unwrap()).unwrap();
        fs::set_permissions(path_of(dir.path(), 3), fs::Permissions::from_mode(0o644)).unwrap();
        write_private(&path_of(dir.path(), 4), &serde_json::to_vec(&notice(4, true)).unwrap()).unwrap();
        let (found, problems) = list(dir.path());
        assert_eq!(found, [notice(4, true)]);
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(list(&dir.path().join("nowhere")).1.len() == 1);
    }
}
