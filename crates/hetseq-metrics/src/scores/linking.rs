//! Scores of entity linking: were mentions found, and is their entity the right one? Samples are
//! counted as sums, so they can be scored anywhere, also on several ranks, and the score of all is
//! exact. For the entity-linking task, in validation.
//!
//! There are three scores:
//! - *Mentions*: precision, recall and F1 of mentions as spans of words. The type of a tag does not
//!   count, nor does the entity.
//! - *Accuracy*: of the gold mentions whose entity can be predicted, how many get it if the model is
//!   given the mentions. It measures linking alone.
//! - *Links*: precision, recall and F1 of mentions with their entities, from text to entities ("InKB"
//!   micro scores of GERBIL). Span and entity must both be right. Gold mentions with an unknown
//!   entity are left out, and so are predictions with exactly their span. A gold mention whose entity
//!   is not in the dictionary cannot be found, and counts as missed.

use std::collections::HashMap;
use std::ops::Range;

use crate::scores::error::{ScoreError, check_lengths};
use crate::scores::f1::{COUNTS, F1Score, LabelCounts};

/// The entity of a gold mention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GoldEntity {
    /// The id of the entity in the dictionary.
    Linked(u32),
    /// The data does not say which entity it is.
    Unknown,
    /// The data names an entity that the model cannot predict.
    OutOfDictionary,
}

/// A mention in the gold labels of a sample.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GoldMention {
    pub words: Range<usize>,
    pub entity: GoldEntity,
}

/// A mention that a model found in a sample.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PredictedMention {
    pub words: Range<usize>,
    /// `None` if the model found no entity. Such a mention is no link.
    pub entity: Option<u32>,
}

/// Counts of the mentions and links of some samples; [`LinkSums::add`] adds those of others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkSums {
    mentions: LabelCounts,
    links: LabelCounts,
    /// Of `linkable`, how many get their entity if their spans are given.
    correct: u64,
    /// Gold mentions with an entity of the dictionary.
    linkable: u64,
}

impl LinkSums {
    /// The length of [`LinkSums::to_counts`].
    pub const COUNTS: usize = 2 * COUNTS + 2;

    /// Counts one sample. `given` are the ids that the model predicts for the gold mentions with
    /// [`GoldEntity::Linked`], in their order, which it need not find itself.
    ///
    /// A span counts once: gold mentions are those with different spans, and of several predictions
    /// with one span, only the first can be right.
    pub fn of(gold: &[GoldMention], predicted: &[PredictedMention], given: &[u32]) -> Result<Self, ScoreError> {
        let linkable = gold.iter().filter_map(|mention| match mention.entity {
            GoldEntity::Linked(entity) => Some(entity),
            GoldEntity::Unknown | GoldEntity::OutOfDictionary => None,
        });
        let linkable: Vec<u32> = linkable.collect();
        check_lengths(linkable.len(), given.len())?;
        let mut sums = LinkSums { linkable: linkable.len() as u64, ..LinkSums::default() };
        sums.correct = linkable.iter().zip(given).filter(|(gold, given)| gold == given).count() as u64;

        let mut open: HashMap<&Range<usize>, GoldEntity> =
            gold.iter().map(|mention| (&mention.words, mention.entity)).collect();
        sums.mentions.gold = open.len() as u64;
        sums.links.gold = open.values().filter(|&&entity| entity != GoldEntity::Unknown).count() as u64;
        sums.mentions.predicted = predicted.len() as u64;
        for PredictedMention { words, entity } in predicted {
            let found = open.remove(words);
            sums.mentions.true_positives += u64::from(found.is_some());
            if let Some(entity) = entity
                && found != Some(GoldEntity::Unknown)
            {
                sums.links.predicted += 1;
                sums.links.true_positives += u64::from(found == Some(GoldEntity::Linked(*entity)));
            }
        }
        Ok(sums)
    }

    pub fn add(&mut self, other: &Self) {
        self.mentions.add(&other.mentions);
        self.links.add(&other.links);
        // Counts may come from another rank, so no values may cause an overflow.
        self.correct = self.correct.saturating_add(other.correct);
        self.linkable = self.linkable.saturating_add(other.linkable);
    }

    /// The counts as numbers that can be added up.
    pub fn to_counts(&self) -> [u64; Self::COUNTS] {
        let ([a, b, c], [d, e, f]) = (self.mentions.to_counts(), self.links.to_counts());
        [a, b, c, d, e, f, self.correct, self.linkable]
    }

    /// Restores the sums from [`LinkSums::to_counts`].
    pub fn from_counts(counts: &[u64]) -> Result<Self, ScoreError> {
        let &[a, b, c, d, e, f, correct, linkable] = counts else {
            return Err(ScoreError::WrongNumberOfCounts { found: counts.len(), expected: Self::COUNTS });
        };
        let [mentions, links] = [[a, b, c], [d, e, f]].map(LabelCounts::from_counts);
        Ok(LinkSums { mentions, links, correct, linkable })
    }

    /// The score of mentions as spans.
    pub fn mention_score(&self) -> F1Score {
        self.mentions.score()
    }

    /// The score of mentions with their entities.
    pub fn link_score(&self) -> F1Score {
        self.links.score()
    }

    /// The share of gold mentions with an entity of the dictionary that get it if the spans are
    /// given; 0 if there are none.
    pub fn accuracy(&self) -> f64 {
        if self.linkable == 0 { 0.0 } else { self.correct as f64 / self.linkable as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gold(words: Range<usize>, entity: GoldEntity) -> GoldMention {
        GoldMention { words, entity }
    }

    fn predicted(words: Range<usize>, entity: u32) -> PredictedMention {
        PredictedMention { words, entity: Some(entity) }
    }

    /// Mentions (true positives, predicted, gold), links (the same), correct and linkable.
    fn counts(gold: &[GoldMention], predicted: &[PredictedMention], given: &[u32]) -> [u64; 8] {
        LinkSums::of(gold, predicted, given).unwrap().to_counts()
    }

    #[test]
    fn span_and_entity_must_both_be_right() {
        use GoldEntity::Linked;
        let sample = [gold(0..2, Linked(7)), gold(3..4, Linked(8)), gold(5..6, Linked(9))];
        // The span of the second is wrong, and so is the entity of the third.
        let found = [predicted(0..2, 7), predicted(3..5, 8), predicted(5..6, 7)];
        assert_eq!(counts(&sample, &found, &[7, 8, 7]), [2, 3, 3, 1, 3, 3, 2, 3]);
        let sums = LinkSums::of(&sample, &found, &[7, 8, 7]).unwrap();
        let third = 1.0 / 3.0;
        assert_eq!(sums.mention_score().f1, 2.0 * third);
        assert_eq!(sums.link_score(), F1Score { precision: third, recall: third, f1: third, support: 3 });
        assert_eq!(sums.accuracy(), 2.0 * third);
        assert_eq!(counts(&sample, &[], &[1, 1, 1]), [0, 0, 3, 0, 0, 3, 0, 3]);
        assert_eq!(counts(&[], &found, &[]), [0, 3, 0, 0, 3, 0, 0, 0]);
    }

    #[test]
    fn unknown_entities_are_left_out_of_links_on_both_sides() {
        let sample = [gold(0..1, GoldEntity::Unknown), gold(2..4, GoldEntity::Unknown)];
        // The first prediction has exactly the span of an unknown entity; the other overlaps one.
        assert_eq!(counts(&sample, &[predicted(0..1, 5), predicted(2..3, 5)], &[]), [1, 2, 2, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn an_entity_outside_the_dictionary_is_missed() {
        let sample = [gold(0..1, GoldEntity::OutOfDictionary), gold(1..2, GoldEntity::Linked(1))];
        let found = [predicted(0..1, 5), predicted(1..2, 1)];
        assert_eq!(counts(&sample, &found, &[1]), [2, 2, 2, 1, 2, 2, 1, 1]);
    }

    #[test]
    fn a_prediction_without_an_entity_is_no_link() {
        let found = [PredictedMention { words: 0..1, entity: None }];
        assert_eq!(counts(&[gold(0..1, GoldEntity::Linked(1))], &found, &[1]), [1, 1, 1, 0, 0, 1, 1, 1]);
    }

    #[test]
    fn a_span_counts_once() {
        let sample = [gold(0..1, GoldEntity::Linked(1))];
        assert_eq!(counts(&sample, &[predicted(0..1, 1), predicted(0..1, 1)], &[1]), [1, 2, 1, 1, 2, 1, 1, 1]);
    }

    #[test]
    fn wrong_lengths_are_errors_and_sums_do_not_overflow() {
        let error = LinkSums::of(&[gold(0..1, GoldEntity::Linked(1))], &[], &[]);
        assert_eq!(error, Err(ScoreError::UnequalLengths { gold: 1, predicted: 0 }));
        let error = LinkSums::from_counts(&[1; 7]);
        assert_eq!(error, Err(ScoreError::WrongNumberOfCounts { found: 7, expected: 8 }));
        let mut many = LinkSums::from_counts(&[u64::MAX; LinkSums::COUNTS]).unwrap();
        many.add(&many.clone());
        assert_eq!(many.to_counts(), [u64::MAX; 8]);
        assert!(many.link_score().f1.is_finite() && many.accuracy() == 1.0);
        assert_eq!((LinkSums::default().accuracy(), LinkSums::default().link_score()), (0.0, F1Score::default()));
    }
}
