//! Messages between ranks as bytes. Floats keep their bits, and what a peer sends that is no such
//! message is an error that names the peer. Used wherever ranks exchange something besides
//! gradients.

use hetseq_comm::Group;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::TrainError;

pub(crate) fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, TrainError> {
    postcard::to_stdvec(message).map_err(|error| TrainError::Encode { reason: error.to_string() })
}

pub(crate) fn decode<M: DeserializeOwned>(rank: usize, bytes: &[u8]) -> Result<M, TrainError> {
    postcard::from_bytes(bytes).map_err(|error| TrainError::Decode { rank, reason: error.to_string() })
}

/// As JSON, for what has no fixed shape. Floats keep their value.
pub(crate) fn encode_json<M: Serialize>(message: &M) -> Result<Vec<u8>, TrainError> {
    serde_json::to_vec(message).map_err(|error| TrainError::Encode { reason: error.to_string() })
}

pub(crate) fn decode_json<M: DeserializeOwned>(rank: usize, bytes: &[u8]) -> Result<M, TrainError> {
    serde_json::from_slice(bytes).map_err(|error| TrainError::Decode { rank, reason: error.to_string() })
}

/// The messages of all ranks, in rank order. A collective.
pub(crate) fn all_gather<M: Serialize + DeserializeOwned>(
    group: &mut Group,
    message: &M,
) -> Result<Vec<M>, TrainError> {
    let all = group.all_gather_bytes(&encode(message)?)?;
    all.iter().enumerate().map(|(rank, bytes)| decode(rank, bytes)).collect()
}
