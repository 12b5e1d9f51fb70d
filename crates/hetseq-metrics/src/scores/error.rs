//! Input that has no score: wrong lengths, labels or counts. Returned by
//! [`entities`](crate::scores::entities), [`linking`](crate::scores::linking),
//! [`classification`](crate::scores::classification) and
//! [`correlation`](crate::scores::correlation). Scores of text have
//! [`UnequalLines`](crate::UnequalLines) instead.

use crate::scores::entities::TagScheme;

/// A reason why labels or counts cannot be scored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScoreError {
    #[error("there are {gold} gold labels, but {predicted} predictions; both need one per item")]
    UnequalLengths { gold: usize, predicted: usize },
    /// Positions count from 0.
    #[error("tag {at} of a sentence is empty; write `O` for tokens outside of entities")]
    EmptyTag { at: usize },
    #[error("tag {at} of a sentence, `{tag}`, has a prefix that {scheme} does not have ({})", .scheme.prefixes())]
    InvalidPrefix { at: usize, tag: String, scheme: TagScheme },
    #[error("found entities of type `{entity_type}`, which is not in the list of types to count")]
    UnlistedType { entity_type: String },
    #[error("expected {expected} counts, but there are {found}")]
    WrongNumberOfCounts { found: usize, expected: usize },
    #[error("class {class} is out of range: there are {classes} classes, counted from 0")]
    ClassOutOfRange { class: usize, classes: usize },
    #[error("{classes} classes are more than the maximum of {limit}")]
    TooManyClasses { classes: usize, limit: usize },
    #[error("cannot add counts of {found} classes to counts of {expected} classes")]
    UnequalClasses { found: usize, expected: usize },
}

/// Checks that each gold label has a prediction.
pub(crate) fn check_lengths(gold: usize, predicted: usize) -> Result<(), ScoreError> {
    if gold == predicted { Ok(()) } else { Err(ScoreError::UnequalLengths { gold, predicted }) }
}

/// Checks the length of counts from elsewhere.
pub(crate) fn check_counts(found: usize, expected: usize) -> Result<(), ScoreError> {
    if found == expected { Ok(()) } else { Err(ScoreError::WrongNumberOfCounts { found, expected }) }
}
