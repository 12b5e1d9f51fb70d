//! The content of a checkpoint, copied at an update boundary so that training continues while it is
//! written. Costs one more copy of the parameters and the optimizer's moments. The next snapshot
//! reuses the buffers.

use std::sync::Arc;

use hetseq_optim::Layout;
use rayon::prelude::*;

use crate::trainer::state::State;

/// The parts of a checkpoint that do not change during a run.
pub(crate) struct RunConstants {
    pub(crate) layout: Arc<Layout>,
    /// Content of `config.toml`.
    pub(crate) config: String,
    /// Names and contents of the files that the task stores next to the weights.
    pub(crate) files: Vec<(String, Vec<u8>)>,
}

pub(crate) struct Snapshot {
    pub(crate) constants: Arc<RunConstants>,
    pub(crate) state: State,
    pub(crate) parameters: Vec<f32>,
    pub(crate) slots: Vec<(String, Vec<f32>)>,
}

/// Elements that a thread copies at a time: enough for one `memcpy`, few enough to balance threads.
const CHUNK: usize = 256 * 1024;

impl Snapshot {
    /// Copies the given state. `spare` is an earlier snapshot whose buffers are overwritten.
    pub(crate) fn take(
        constants: &Arc<RunConstants>,
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
        Snapshot { slots: slots.collect(), constants: constants.clone(), state: state.clone(), parameters: buffer }
    }

    /// The update after which it was taken.
    pub(crate) fn update(&self) -> u64 {
        self.state.cursor.updates
    }

    /// Whether it belongs to the best validation result so far.
    pub(crate) fn is_best(&self) -> bool {
        self.state.best.as_ref().is_some_and(|best| best.update == self.update())
    }

    /// Approximate size on disk.
    pub(crate) fn size_bytes(&self) -> u64 {
        size_bytes(self.parameters.len(), self.slots.iter().map(|(_, values)| values.len()))
    }
}

/// Approximate size on disk of a checkpoint with this many parameters and optimizer slots of these
/// lengths.
pub(crate) fn size_bytes(parameters: usize, slots: impl Iterator<Item = usize>) -> u64 {
    /// Tensor names and shapes, the config and the state.
    const METADATA: u64 = 16 << 10;
    4 * (parameters + slots.sum::<usize>()) as u64 + METADATA
}

fn copy(from: &[f32], into: &mut Vec<f32>) {
    if into.len() != from.len() {
        // Extending touches new memory once; resizing would zero it first.
        into.clear();
        into.extend_from_slice(from);
        return;
    }
    into.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).for_each(|(into, from)| into.copy_from_slice(from));
}
