//! The cursor: a run's position in its data, and all the data state that resuming needs.
//!
//! It holds no sample order and no random state: the plan of an epoch is recomputed from the seed.
//! The trainer advances it once per finished update, and checkpoints store it.

use serde::{Deserialize, Serialize};

/// The next update to compute. Epochs and updates count from zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    pub epoch: u64,
    /// Position of the next update in this epoch's plan.
    pub update_in_epoch: u64,
    /// Updates finished since the start of the run.
    pub updates: u64,
    /// Samples used since the start of the run, each counted once per epoch.
    pub samples: u64,
}

impl Cursor {
    /// Advances past an update of `samples` samples, in an epoch of `updates_in_epoch` updates.
    ///
    /// A position at or past the end rolls over to the next epoch. A checkpoint made with another
    /// global batch may have a position that this epoch does not have; it must not get stuck there.
    pub fn advance(&mut self, samples: u64, updates_in_epoch: usize) {
        self.updates = self.updates.saturating_add(1);
        self.samples = self.samples.saturating_add(samples);
        self.update_in_epoch = self.update_in_epoch.saturating_add(1);
        if self.update_in_epoch >= updates_in_epoch as u64 {
            self.epoch = self.epoch.saturating_add(1);
            self.update_in_epoch = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_update_of_an_epoch_is_followed_by_the_first_of_the_next() {
        let mut cursor = Cursor::default();
        for samples in [32, 32, 5] {
            cursor.advance(samples, 3);
        }
        assert_eq!(cursor, Cursor { epoch: 1, update_in_epoch: 0, updates: 3, samples: 69 });
        cursor.advance(32, 3);
        assert_eq!(cursor, Cursor { epoch: 1, update_in_epoch: 1, updates: 4, samples: 101 });
    }

    #[test]
    fn a_position_past_the_end_of_the_epoch_rolls_over() {
        let mut cursor = Cursor { epoch: 2, update_in_epoch: u64::MAX, updates: 9, samples: u64::MAX };
        cursor.advance(1, 3);
        assert_eq!(cursor, Cursor { epoch: 3, update_in_epoch: 0, updates: 10, samples: u64::MAX });
        cursor.advance(1, 0);
        assert_eq!(cursor.epoch, 4);
    }

    #[test]
    fn it_survives_a_checkpoint() {
        let cursor = Cursor { epoch: 1, update_in_epoch: 2, updates: 30, samples: 900 };
        let text = serde_json::to_string(&cursor).unwrap();
        assert_eq!(serde_json::from_str::<Cursor>(&text).unwrap(), cursor);
    }
}
