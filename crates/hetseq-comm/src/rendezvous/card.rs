//! Where the members of a group are reached: a card per member, and the file `members.json` that each
//! rank keeps in its run directory, so that a process that starts again finds the group.
//!
//! Files and data only; `newcomer.rs` dials, `door.rs` answers. Only its owner can read the file: it
//! holds the keys of a secret that rank 0 has drawn. It does not show whether the group still runs.

use std::net::SocketAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::secret::{Credentials, SecretKey};
use crate::secret_file::{read_private, write_private};

/// How many addresses of one machine are tried at most.
const ADDRESSES_LIMIT: usize = 12;

/// One member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberCard {
    /// Of this process; random.
    pub(crate) id: u64,
    pub(crate) host: String,
    /// Of its door; none if it has none.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl MemberCard {
    /// Makes a card from a peer safe to show and to use.
    pub(crate) fn checked(mut self) -> MemberCard {
        self.host = super::handshake::shown_name(&self.host);
        self.addresses.truncate(ADDRESSES_LIMIT);
        self
    }
}

/// What `members.json` contains.
#[derive(Serialize, Deserialize)]
pub(crate) struct MembersFile {
    /// The generation in which the group started, which tells it from others.
    pub(crate) group: u64,
    /// In rank order.
    pub(crate) members: Vec<MemberCard>,
    /// The keys of a secret that rank 0 has drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keys: Option<String>,
}

impl MembersFile {
    pub(crate) fn new(group: u64, members: &[MemberCard], credentials: &Credentials) -> MembersFile {
        let keys = match credentials {
            Credentials::File(Ok(key)) => Some(key.to_hex()),
            Credentials::None | Credentials::Given(_) | Credentials::File(Err(_)) => None,
        };
        MembersFile { group, members: members.to_vec(), keys }
    }

    /// The secret that rank 0 has drawn, if so.
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        Some(Credentials::File(Ok(SecretKey::from_hex(self.keys.as_deref()?)?)))
    }

    /// The error is the reason only.
    pub(crate) fn write(&self, path: &Path) -> Result<(), String> {
        let bytes = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        // Ranks above 0 write nothing else into a run directory of their own.
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(|error| error.to_string())?;
        write_private(path, &bytes)
    }

    /// Returns what the file contains; none if there is no usable one.
    pub(crate) fn read(path: &Path) -> Option<MembersFile> {
        if !path.exists() {
            return None;
        }
        let read = read_private(path).and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
        let mut file: MembersFile =
            read.inspect_err(|why| tracing::debug!("{} is not used: {why}", path.display())).ok()?;
        file.members = file.members.into_iter().map(MemberCard::checked).collect();
        Some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_keeps_members_and_drawn_keys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/members.json");
        assert!(MembersFile::read(&path).is_none());
        let card = MemberCard { id: 5, host: "alpha".to_owned(), addresses: vec!["10.0.0.1:7".parse().unwrap()] };
        for (credentials, has_keys) in [
            (Credentials::File(Ok(SecretKey::new("squirrel"))), true),
            (Credentials::Given(SecretKey::new("squirrel")), false),
        ] {
            MembersFile::new(7, std::slice::from_ref(&card), &credentials).write(&path).unwrap();
            let read = MembersFile::read(&path).unwrap();
            assert_eq!(
                (read.group, &read.members[..], read.credentials().is_some()),
                (7, &[card.clone()][..], has_keys)
            );
        }
        std::fs::write(&path, "{").unwrap();
        assert!(MembersFile::read(&path).is_none());
    }
}
