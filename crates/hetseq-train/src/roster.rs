//! Who is in the group: every device of every rank, in one order that all ranks share. Exchanged once per group.

use std::ops::Range;

use hetseq_comm::{Group, Shards};
use hetseq_data::{DataError, DeviceLoad, Pace, Share, Split, share};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) device: String,
    /// The device's part of its rank's `--weight`.
    pub(crate) weight: f64,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) max_samples: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Roster {
    /// (rank, device), rank by rank.
    pub(crate) members: Vec<(usize, Member)>,
    /// Which of them belong to this rank.
    pub(crate) mine: Range<usize>,
    /// Per rank: how much of each sum it adds up.
    owners: Vec<f64>,
}

/// Tokens and samples of a micro-batch at most.
pub(crate) type Caps = (Option<u32>, Option<u32>);

impl Roster {
    pub(crate) fn exchange(group: &mut Group, own: f64, mine: &[Member]) -> Result<Self, TrainError> {
        let bytes = postcard::to_stdvec(&(own, mine)).map_err(|error| undecodable(0, &error))?;
        let (mut members, mut owners) = (Vec::new(), Vec::new());
        let mut range = 0..0;
        for (rank, bytes) in group.agree(&bytes)?.iter().enumerate() {
            let (own, theirs): (f64, Vec<Member>) =
                postcard::from_bytes(bytes).map_err(|error| undecodable(rank, &error))?;
            owners.push(own);
            let first = members.len();
            members.extend(theirs.into_iter().map(|member| (rank, member)));
            if rank == group.rank() {
                range = first..members.len();
            }
        }
        Ok(Roster { members, mine: range, owners })
    }

    /// Which rank adds up which part of a vector of `len` values.
    pub(crate) fn shards(&self, len: usize) -> Shards {
        Shards::weighted(len, &self.owners)
    }

    /// Who computes which part of an update whose samples cost `tokens`. `usual`: tokens and samples of a micro-batch at most,
    /// for a device without caps of its own.
    pub(crate) fn share(
        &self,
        pace: &Pace,
        split: Split,
        tokens: &[u32],
        usual: Caps,
    ) -> Result<Vec<Share>, DataError> {
        let weights: Vec<f64> = self.members.iter().map(|(_, member)| member.weight).collect();
        let own = |member: &Member| (member.max_tokens, member.max_samples);
        let caps = self.members.iter().map(|(_, member)| match own(member) {
            (None, None) => usual,
            caps => caps,
        });
        let caps: Vec<Caps> = caps.collect();
        let loads: Vec<DeviceLoad> = pace.loads(split, &weights, &caps);
        share(tokens, &loads)
    }

    /// The micro-batches of this rank's devices, as sample ids.
    pub(crate) fn my_micro_batches(&self, shares: &[Share], samples: &[u32]) -> Vec<Vec<Vec<u32>>> {
        let ids = |share: &Share| share.micro.iter().map(|range| samples[range.clone()].to_vec()).collect();
        shares[self.mine.clone()].iter().map(ids).collect()
    }
}

/// What cannot be read came from a program of another version, or was garbled past the checksums.
pub(crate) fn undecodable(rank: usize, error: &postcard::Error) -> TrainError {
    TrainError::Disagreement {
        update: 0,
        what: "the form of messages",
        detail: format!("rank {rank}: {error}"),
        last: "the last checkpoint".to_owned(),
    }
}
