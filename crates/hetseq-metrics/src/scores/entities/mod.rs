//! Precision, recall and F1 of whole entities, equal to seqeval's. Sentences are counted as sums,
//! so they can be scored anywhere, also on several ranks, and the score of all is exact. For tasks
//! that tag tokens, in validation.
//!
//! An entity is correct if its tokens and its type are; a part of it counts nothing. It is not a
//! score of single tags: see [`classification`](crate::scores::classification).
//!
//! Each sentence is scored alone. seqeval does the same if all prefixes are `B`, `I`, `E`, `S` or
//! `O`, and always in its strict mode. With other prefixes, its default mode can find an entity
//! that begins in an earlier sentence. Its score then depends on the order of the sentences, so it
//! is not a sum; here, such an entity begins with its sentence.

mod spans;

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

pub use spans::{EntitySpan, TagScheme, entity_spans, entity_types};

use crate::scores::error::{ScoreError, check_counts, check_lengths};
use crate::scores::f1::{COUNTS, F1Averages, F1Score, LabelCounts};

/// Counts of the entities of some sentences, by type; [`EntitySums::add`] adds those of others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntitySums {
    /// Only types that occur, so that equal sums are equal values.
    types: BTreeMap<String, LabelCounts>,
}

/// Scores of each type that occurs, and their averages.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EntityReport {
    pub types: BTreeMap<String, F1Score>,
    #[serde(flatten)]
    pub averages: F1Averages,
}

impl EntitySums {
    /// Counts one sentence, which has one tag per token.
    pub fn of<G, P>(scheme: TagScheme, gold: &[G], predicted: &[P]) -> Result<Self, ScoreError>
    where
        G: AsRef<str>,
        P: AsRef<str>,
    {
        check_lengths(gold.len(), predicted.len())?;
        let gold: HashSet<_> = entity_spans(scheme, gold)?.into_iter().collect();
        let mut sums = EntitySums::default();
        for span in entity_spans(scheme, predicted)? {
            let true_positives = u64::from(gold.contains(&span));
            sums.add_type(span.entity_type, &LabelCounts { true_positives, predicted: 1, gold: 0 });
        }
        for span in gold {
            sums.add_type(span.entity_type, &LabelCounts { gold: 1, ..LabelCounts::default() });
        }
        Ok(sums)
    }

    pub fn add(&mut self, other: &Self) {
        other.types.iter().for_each(|(entity_type, counts)| self.add_type(entity_type, counts));
    }

    fn add_type(&mut self, entity_type: &str, counts: &LabelCounts) {
        match self.types.get_mut(entity_type) {
            Some(own) => own.add(counts),
            None => _ = self.types.insert(entity_type.to_owned(), *counts),
        }
    }

    /// The counts of each type that occurs, sorted by name.
    pub fn types(&self) -> &BTreeMap<String, LabelCounts> {
        &self.types
    }

    /// The counts as numbers that can be added up: true positives, predicted and gold of each of
    /// `types`; 0 if it does not occur. [`entity_types`] lists the types of a set of labels. It is
    /// an error if entities have another type: their counts would be lost.
    pub fn to_counts<S: AsRef<str>>(&self, types: &[S]) -> Result<Vec<u64>, ScoreError> {
        let listed: HashSet<&str> = types.iter().map(AsRef::as_ref).collect();
        if let Some(entity_type) = self.types.keys().find(|own| !listed.contains(own.as_str())) {
            return Err(ScoreError::UnlistedType { entity_type: entity_type.clone() });
        }
        let counts_of = |entity_type: &S| self.types.get(entity_type.as_ref()).copied().unwrap_or_default().to_counts();
        Ok(types.iter().flat_map(counts_of).collect())
    }

    /// Restores the sums from counts of the same `types`.
    pub fn from_counts<S: AsRef<str>>(types: &[S], counts: &[u64]) -> Result<Self, ScoreError> {
        check_counts(counts.len(), types.len().saturating_mul(COUNTS))?;
        let (rows, _) = counts.as_chunks::<COUNTS>();
        let rows = rows.iter().map(|&row| LabelCounts::from_counts(row));
        let rows = types.iter().map(|entity_type| entity_type.as_ref().to_owned()).zip(rows);
        Ok(EntitySums { types: rows.filter(|(_, counts)| counts.occurs()).collect() })
    }

    /// The averages alone.
    pub fn averages(&self) -> F1Averages {
        F1Averages::new(self.types.values())
    }

    pub fn report(&self) -> EntityReport {
        let types = self.types.iter().map(|(entity_type, counts)| (entity_type.clone(), counts.score()));
        EntityReport { types: types.collect(), averages: self.averages() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(gold: &str, predicted: &str) -> EntitySums {
        let (gold, predicted): (Vec<_>, Vec<_>) = (gold.split(' ').collect(), predicted.split(' ').collect());
        EntitySums::of(TagScheme::Conlleval, &gold, &predicted).unwrap()
    }

    #[test]
    fn tokens_and_type_must_both_be_right() {
        let found = sums("B-PER I-PER O B-LOC O B-PER", "B-PER I-PER O B-PER O B-LOC");
        assert_eq!(found.to_counts(&["LOC", "PER"]), Ok(vec![0, 1, 1, 1, 2, 2]));
        let found = sums("B-PER I-PER I-PER", "B-PER I-PER O");
        assert_eq!(found.to_counts(&["PER"]), Ok(vec![0, 1, 1]));
        let report = sums("B-PER O", "B-PER O").report();
        assert_eq!(report.averages.micro_average, F1Score { precision: 1.0, recall: 1.0, f1: 1.0, support: 1 });
        let json = serde_json::to_value(report).unwrap();
        assert_eq!((&json["types"]["PER"]["f1"], &json["micro_average"]["support"]), (&1.0.into(), &1.into()));
    }

    #[test]
    fn different_lengths_are_an_error() {
        let error = EntitySums::of(TagScheme::Iob2, &["O", "B-X"], &["O"]);
        assert_eq!(error, Err(ScoreError::UnequalLengths { gold: 2, predicted: 1 }));
        assert_eq!(EntitySums::of::<&str, &str>(TagScheme::Iob2, &[], &[]), Ok(EntitySums::default()));
    }

    #[test]
    fn counts_need_a_list_of_all_types() {
        let found = sums("B-PER O", "O B-LOC");
        assert_eq!(found.to_counts(&["PER"]), Err(ScoreError::UnlistedType { entity_type: "LOC".into() }));
        assert_eq!(found.to_counts(&["PER", "X", "LOC"]), Ok(vec![0, 0, 1, 0, 0, 0, 0, 1, 0]));
        for wrong in 0..6 {
            let error = EntitySums::from_counts(&["A", "B"], &vec![1; wrong]);
            assert_eq!(error, Err(ScoreError::WrongNumberOfCounts { found: wrong, expected: 6 }));
        }
        // A type that is listed twice does not count twice.
        let counts = found.to_counts(&["PER", "LOC", "PER"]).unwrap();
        assert_eq!(EntitySums::from_counts(&["PER", "LOC", "PER"], &counts), Ok(found));
    }

    #[test]
    fn counts_from_other_ranks_do_not_overflow() {
        let mut many = EntitySums::from_counts(&["A"], &[u64::MAX; 3]).unwrap();
        many.add(&many.clone());
        assert_eq!(many.to_counts(&["A"]), Ok(vec![u64::MAX; 3]));
        assert!(many.report().averages.macro_average.f1.is_finite());
    }
}
