//! Samples that could not be read and were left out: what ranks tell each other about them, and what a person is told.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::task::Which;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Skipped {
    pub(crate) sample: u32,
    /// Names the file.
    pub(crate) reason: String,
}

/// Each one is told of once, however many epochs come by it; after so many they are only counted.
const TOLD: usize = 100;

/// As this rank tells the others: with whose disk it was, since data are compared by names and sizes only and another
/// machine's copy may be whole; and without the reasons that nobody will read, so that it stays small if all is gone. All
/// of them: by their number it is seen whether an update has any sample left.
pub(crate) fn to_tell(mut skipped: Vec<Skipped>, whose: Option<&str>) -> Vec<Skipped> {
    for (i, Skipped { reason, .. }) in skipped.iter_mut().enumerate() {
        if i >= TOLD {
            reason.clear();
        } else if let Some(whose) = whose {
            *reason = format!("{reason} ({whose})");
        }
    }
    skipped
}

/// All of a run so far.
#[derive(Debug, Default)]
pub(crate) struct Skips {
    seen: HashSet<(Which, u32)>,
}

impl Skips {
    /// What to tell of those just skipped.
    pub(crate) fn note(&mut self, which: Which, skipped: &[Skipped]) -> Vec<String> {
        let mut words = Vec::new();
        for Skipped { sample, reason } in skipped {
            if !self.seen.insert((which, *sample)) {
                continue;
            }
            if self.seen.len() <= TOLD && !reason.is_empty() {
                words.push(format!("a sample was skipped: {reason}"));
            }
            if self.seen.len() == TOLD {
                words.push(format!("{TOLD} samples were skipped; further ones are only counted"));
            }
        }
        words
    }

    /// How many different ones.
    pub(crate) fn samples(&self) -> u64 {
        self.seen.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(sample: u32) -> Skipped {
        Skipped { sample, reason: format!("{sample}.jpg is torn") }
    }

    #[test]
    fn each_is_told_once() {
        let mut skips = Skips::default();
        assert_eq!(skips.note(Which::Train, &[skipped(3), skipped(4)]).len(), 2);
        assert_eq!(skips.note(Which::Train, &[skipped(4)]), Vec::<String>::new());
        assert_eq!(skips.note(Which::Valid, &[skipped(4)]), ["a sample was skipped: 4.jpg is torn"]);
        assert_eq!(skips.samples(), 3);
    }

    #[test]
    fn all_are_told_of_but_few_with_reasons() {
        let told = to_tell((0..5000).map(skipped).collect(), None);
        assert_eq!((told.len(), told[TOLD - 1].reason.as_str()), (5000, "99.jpg is torn"));
        assert!(told[TOLD..].iter().all(|skipped| skipped.reason.is_empty()));
    }

    #[test]
    fn a_flood_is_cut_short_but_counted() {
        let mut skips = Skips::default();
        let flood: Vec<Skipped> = (0..5000).map(skipped).collect();
        let words = skips.note(Which::Train, &flood);
        assert_eq!(words.len(), TOLD + 1);
        assert_eq!(words[TOLD], "100 samples were skipped; further ones are only counted");
        assert_eq!(skips.samples(), 5000);
    }
}
