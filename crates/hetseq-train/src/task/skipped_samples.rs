//! Samples that could not be read and were skipped: what ranks send to each other about them, and
//! the warnings for the user. Called by the trainer and by evaluation.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::task::Split;

/// A skipped sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SkippedSample {
    pub(crate) sample: u32,
    /// Names the file.
    pub(crate) reason: String,
}

/// Each sample is reported once per run, not once per epoch. After this many they are only counted.
const MAX_REPORTED: usize = 100;

/// Prepares the list that this rank sends to the others.
///
/// Adds the rank's label to the reasons: data are compared by names and sizes only, so the copy of
/// another machine may be intact. Drops the reasons that are never shown, so that the message stays
/// small if all files are lost. Keeps all samples: their number shows whether an update has any
/// left.
pub(crate) fn for_peers(mut skipped: Vec<SkippedSample>, rank_label: Option<&str>) -> Vec<SkippedSample> {
    for (i, SkippedSample { reason, .. }) in skipped.iter_mut().enumerate() {
        if i >= MAX_REPORTED {
            reason.clear();
        } else if let Some(label) = rank_label {
            *reason = format!("{reason} ({label})");
        }
    }
    skipped
}

/// All skipped samples of a run so far.
#[derive(Debug, Default)]
pub(crate) struct SkippedSamples {
    seen: HashSet<(Split, u32)>,
}

impl SkippedSamples {
    /// Records skipped samples. Returns warnings for those that are new.
    pub(crate) fn note(&mut self, split: Split, skipped: &[SkippedSample]) -> Vec<String> {
        let mut warnings = Vec::new();
        for SkippedSample { sample, reason } in skipped {
            if !self.seen.insert((split, *sample)) {
                continue;
            }
            if self.seen.len() <= MAX_REPORTED && !reason.is_empty() {
                warnings.push(format!("a sample was skipped: {reason}"));
            }
            if self.seen.len() == MAX_REPORTED {
                warnings.push(format!("{MAX_REPORTED} samples were skipped; further ones are only counted"));
            }
        }
        warnings
    }

    /// Number of different skipped samples.
    pub(crate) fn samples(&self) -> u64 {
        self.seen.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(sample: u32) -> SkippedSample {
        SkippedSample { sample, reason: format!("{sample}.jpg is truncated") }
    }

    #[test]
    fn each_is_reported_once() {
        let mut skipped_samples = SkippedSamples::default();
        assert_eq!(skipped_samples.note(Split::Train, &[skipped(3), skipped(4)]).len(), 2);
        assert_eq!(skipped_samples.note(Split::Train, &[skipped(4)]), Vec::<String>::new());
        assert_eq!(skipped_samples.note(Split::Valid, &[skipped(4)]), ["a sample was skipped: 4.jpg is truncated"]);
        assert_eq!(skipped_samples.samples(), 3);
    }

    #[test]
    fn all_are_sent_but_few_with_reasons() {
        let sent = for_peers((0..5000).map(skipped).collect(), None);
        assert_eq!((sent.len(), sent[MAX_REPORTED - 1].reason.as_str()), (5000, "99.jpg is truncated"));
        assert!(sent[MAX_REPORTED..].iter().all(|skipped| skipped.reason.is_empty()));
    }

    #[test]
    fn beyond_the_limit_they_are_only_counted() {
        let mut skipped_samples = SkippedSamples::default();
        let many: Vec<SkippedSample> = (0..5000).map(skipped).collect();
        let warnings = skipped_samples.note(Split::Train, &many);
        assert_eq!(warnings.len(), MAX_REPORTED + 1);
        assert_eq!(warnings[MAX_REPORTED], "100 samples were skipped; further ones are only counted");
        assert_eq!(skipped_samples.samples(), 5000);
    }
}
