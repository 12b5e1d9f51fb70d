//! What a checkpoint holds, copied at an update boundary, so that training can go on while it is written. Costs one
//! more copy of the parameters and the optimizer's moments; the buffers are used again for the next one.

use std::sync::Arc;

use hetseq_optim::Layout;
use rayon::prelude::*;

use crate::state::State;

/// What all checkpoints of a run have in common.
pub(crate) struct Common {
    pub(crate) layout: Arc<Layout>,
    /// `config.toml`.
    pub(crate) config: String,
    /// Names and contents of what the task lays beside the weights.
    pub(crate) files: Vec<(String, Vec<u8>)>,
}

pub(crate) struct Snapshot {
    pub(crate) common: Arc<Common>,
    pub(crate) state: State,
    pub(crate) parameters: Vec<f32>,
    pub(crate) slots: Vec<(String, Vec<f32>)>,
}

/// Copied by a thread at a time: large enough to be one call of `memcpy`, small enough to share out evenly.
const CHUNK: usize = 256 * 1024;

impl Snapshot {
    /// `spare`: an earlier one, whose buffers are overwritten.
    pub(crate) fn take(
        common: &Arc<Common>,
        state: &State,
        parameters: &[f32],
        slots: &[(String, &[f32])],
        spare: Option<Snapshot>,
    ) -> Self {
        let (mut buffer, old_slots) = spare.map(|spare| (spare.parameters, spare.slots)).unwrap_or_default();
        copy(parameters, &mut buffer);
        let mut old_slots = old_slots.into_iter().map(|(_, values)| values);
        let slots = slots.iter().map(|(name, values)| {
            let mut buffer = old_slots.next().unwrap_or_default();
            copy(values, &mut buffer);
            (name.clone(), buffer)
        });
        Snapshot { slots: slots.collect(), common: common.clone(), state: state.clone(), parameters: buffer }
    }

    /// The update it was taken after.
    pub(crate) fn update(&self) -> u64 {
        self.state.cursor.updates
    }

    /// Whether it is of the best validation so far.
    pub(crate) fn is_best(&self) -> bool {
        self.state.best.as_ref().is_some_and(|best| best.update == self.update())
    }

    /// What it takes on the disk, nearly.
    pub(crate) fn size_bytes(&self) -> u64 {
        size_bytes(self.parameters.len(), self.slots.len())
    }
}

/// What a checkpoint of so many parameters takes on the disk, with so many moments of each.
pub(crate) fn size_bytes(parameters: usize, slots: usize) -> u64 {
    /// Names, shapes, the config and the state.
    const REST: u64 = 16 << 10;
    4 * parameters as u64 * (1 + slots as u64) + REST
}

fn copy(from: &[f32], into: &mut Vec<f32>) {
    if into.len() != from.len() {
        // New memory: touched once, not cleared first.
        into.clear();
        into.extend_from_slice(from);
        return;
    }
    into.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).for_each(|(into, from)| into.copy_from_slice(from));
}
