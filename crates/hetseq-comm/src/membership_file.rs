//! The file in a shared directory that decides between two parts of a split group: the first
//! proposal for a generation wins, and all later ones read it. Used by `regrouping.rs`.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use fs_err as fs;
use serde::{Deserialize, Serialize};

use crate::regroup::RankSet;

/// The members of one generation, on disk.
pub(crate) struct MembershipFile {
    path: PathBuf,
}

/// Its content, for people too.
#[derive(Serialize, Deserialize)]
struct Membership {
    /// Ranks of the generation before.
    members: RankSet,
    hosts: Vec<String>,
}

impl MembershipFile {
    /// Longer files are not ours: this is enough for 30,000 ranks.
    pub(crate) const LIMIT_BYTES: u64 = 4 << 20;

    /// The file for `generation` of the group that started as `first`.
    pub(crate) fn of(directory: &Path, first: u64, generation: u64) -> MembershipFile {
        let name = format!("{first:016x}-{}.json", generation - first);
        MembershipFile { path: directory.join("membership").join(name) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Proposes `members` and returns what is decided: these, or what another rank proposed first.
    pub(crate) fn decide(&self, members: &RankSet, hosts: &[String]) -> io::Result<RankSet> {
        let hosts = members.iter().filter_map(|rank| hosts.get(rank).cloned()).collect();
        let bytes = serde_json::to_vec_pretty(&Membership { members: members.clone(), hosts })?;
        // Read back in any case: over a network, a success may be reported as a failure.
        let created = hetseq_fs::create_new(&self.path, &bytes);
        self.decided().map_err(|error| created.err().unwrap_or(error))
    }

    /// Returns what is decided.
    pub(crate) fn decided(&self) -> io::Result<RankSet> {
        let mut bytes = Vec::new();
        fs::File::open(&self.path)?.take(Self::LIMIT_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > Self::LIMIT_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long to be written by hetseq"));
        }
        Ok(serde_json::from_slice::<Membership>(&bytes)?.members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_proposal_of_a_generation_wins() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = ["a", "b", "c"].map(str::to_owned);
        let (first, second): (RankSet, RankSet) = ([0, 2].into(), [1].into());
        let file = MembershipFile::of(dir.path(), 7, 8);
        assert_eq!(file.decide(&first, &hosts).unwrap(), first);
        assert_eq!(file.decide(&second, &hosts).unwrap(), first);
        assert_eq!(MembershipFile::of(dir.path(), 7, 9).decide(&second, &hosts).unwrap(), second);
        let missing = MembershipFile::of(&dir.path().join("no/such"), 7, 8);
        fs::write(dir.path().join("no"), "a file").unwrap();
        assert!(missing.decide(&first, &hosts).is_err());
    }
}
