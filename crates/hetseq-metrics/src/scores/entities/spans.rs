//! Entities as spans of tokens, read from one tag per token. [`EntitySums`](crate::EntitySums)
//! compares them, and tasks that print entities or look for mentions list them.
//!
//! Well-formed tags mean the same in all libraries. For all others, spans are those of seqeval
//! 1.2.2 on the sentence alone, including its peculiarities, so that scores are equal.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::scores::error::ScoreError;

/// The type of entities whose tags have none, such as `B` or `I-`.
pub(crate) const UNTYPED: &str = "_";

/// How tags mark the first and last tokens of entities. A tag is a prefix of one letter, `-`, and
/// the type of the entity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TagScheme {
    /// All schemes with the letters `I`, `O`, `B`, `E` and `S`, and any malformed sequence:
    /// seqeval's default, which follows the CoNLL script `conlleval`.
    #[default]
    Conlleval,
    /// Strict. Entities begin with `I`, or with `B` directly after one of the same type.
    Iob1,
    /// Strict. Entities begin with `B`.
    Iob2,
    /// Strict. Entities end with `I`, or with `E` directly before one of the same type.
    Ioe1,
    /// Strict. Entities end with `E`.
    Ioe2,
    /// Strict. Entities begin with `B` and end with `E`, or are a single `S`.
    Iobes,
    /// Strict. As `Iobes`, with `L` (last) and `U` (unit) instead of `E` and `S`.
    Bilou,
}

/// The tokens `start..end` of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntitySpan<'a> {
    pub start: usize,
    /// The position after the last token.
    pub end: usize,
    /// `_` if the tags have no type.
    pub entity_type: &'a str,
}

/// A tag in its two parts.
#[derive(Clone, Copy)]
struct Tag<'a> {
    prefix: char,
    entity_type: &'a str,
}

/// seqeval adds this tag to the end of each sentence.
const OUTSIDE: Tag<'static> = Tag { prefix: 'O', entity_type: UNTYPED };

impl TagScheme {
    pub const ALL: [TagScheme; 7] = [
        TagScheme::Conlleval,
        TagScheme::Iob1,
        TagScheme::Iob2,
        TagScheme::Ioe1,
        TagScheme::Ioe2,
        TagScheme::Iobes,
        TagScheme::Bilou,
    ];

    /// The name in configs.
    pub fn name(self) -> &'static str {
        match self {
            TagScheme::Conlleval => "conlleval",
            TagScheme::Iob1 => "iob1",
            TagScheme::Iob2 => "iob2",
            TagScheme::Ioe1 => "ioe1",
            TagScheme::Ioe2 => "ioe2",
            TagScheme::Iobes => "iobes",
            TagScheme::Bilou => "bilou",
        }
    }

    /// The letters of a strict scheme. `Conlleval` accepts any character.
    pub fn prefixes(self) -> &'static str {
        match self {
            TagScheme::Conlleval => "any",
            TagScheme::Iob1 | TagScheme::Iob2 => "IOB",
            TagScheme::Ioe1 | TagScheme::Ioe2 => "IOE",
            TagScheme::Iobes => "IOBES",
            TagScheme::Bilou => "BILOU",
        }
    }

    /// Splits a tag, the one at position `at`. The two modes of seqeval find the type differently:
    /// it is `X-Y` in `B-X-Y` for both, but `-X` or `X` in `B--X`, and `Y` or `X-Y` in `BX-Y`.
    fn split(self, tag: &str, at: usize) -> Result<Tag<'_>, ScoreError> {
        let mut characters = tag.chars();
        let prefix = characters.next().ok_or(ScoreError::EmptyTag { at })?;
        let rest = characters.as_str();
        let entity_type = match self {
            TagScheme::Conlleval => rest.split_once('-').map_or(rest, |(_, after)| after),
            _ if self.prefixes().contains(prefix) => rest.trim_matches('-'),
            _ => return Err(ScoreError::InvalidPrefix { at, tag: tag.to_owned(), scheme: self }),
        };
        Ok(Tag { prefix, entity_type: if entity_type.is_empty() { UNTYPED } else { entity_type } })
    }

    /// Whether an entity can begin at `tag`.
    fn begins(self, previous: Tag<'_>, tag: Tag<'_>) -> bool {
        let same = previous.entity_type == tag.entity_type;
        match (self, previous.prefix, tag.prefix) {
            (TagScheme::Conlleval, _, 'B' | 'S') | (TagScheme::Conlleval, 'E' | 'S' | 'O', 'E' | 'I') => true,
            (TagScheme::Conlleval, _, prefix) => !same && !matches!(prefix, 'O' | '.'),
            (TagScheme::Iob1, 'O' | 'B', 'I') => true,
            (TagScheme::Iob1, 'I', 'I') => !same,
            (TagScheme::Iob1, 'I' | 'B', 'B') => same,
            (TagScheme::Ioe1, 'O' | 'E', 'I') => true,
            (TagScheme::Ioe1, 'I', 'I') => !same,
            (TagScheme::Ioe1, 'E', 'E') => same,
            (TagScheme::Ioe2, 'O' | 'E', 'I' | 'E') => true,
            (TagScheme::Ioe2, 'I', 'I' | 'E') => !same,
            (TagScheme::Iob2, _, prefix) => prefix == 'B',
            (TagScheme::Iobes, _, prefix) => matches!(prefix, 'B' | 'S'),
            (TagScheme::Bilou, _, prefix) => matches!(prefix, 'B' | 'U'),
            (TagScheme::Iob1 | TagScheme::Ioe1 | TagScheme::Ioe2, ..) => false,
        }
    }

    /// Whether `tag` continues the entity of the previous one. Only for strict schemes.
    fn continues(self, previous: Tag<'_>, tag: Tag<'_>) -> bool {
        let fits = match self {
            TagScheme::Conlleval => false,
            TagScheme::Iob1 | TagScheme::Iob2 => matches!((previous.prefix, tag.prefix), ('B' | 'I', 'I')),
            TagScheme::Ioe1 | TagScheme::Ioe2 => matches!((previous.prefix, tag.prefix), ('I', 'I' | 'E')),
            TagScheme::Iobes => matches!((previous.prefix, tag.prefix), ('B' | 'I', 'I' | 'E')),
            TagScheme::Bilou => matches!((previous.prefix, tag.prefix), ('B' | 'I', 'I' | 'L')),
        };
        fits && previous.entity_type == tag.entity_type
    }

    /// Whether an entity can end before `tag`. Strict schemes ignore entities that cannot end.
    fn ends(self, previous: Tag<'_>, tag: Tag<'_>) -> bool {
        let same = previous.entity_type == tag.entity_type;
        match (self, previous.prefix, tag.prefix) {
            (TagScheme::Conlleval, 'E' | 'S', _) | (TagScheme::Conlleval, 'B' | 'I', 'B' | 'S' | 'O') => true,
            (TagScheme::Conlleval, prefix, _) => !same && !matches!(prefix, 'O' | '.'),
            (TagScheme::Iob1, 'I', 'O' | 'B') | (TagScheme::Iob1, 'B', 'O') => true,
            (TagScheme::Iob1, 'I' | 'B', 'I') => !same,
            (TagScheme::Iob1, 'B', 'B') => same,
            (TagScheme::Iob2, 'I' | 'B', 'O' | 'B') => true,
            (TagScheme::Iob2, 'I' | 'B', 'I') => !same,
            (TagScheme::Ioe1, 'I', 'O') => true,
            (TagScheme::Ioe1, 'I', 'I' | 'E') => !same,
            (TagScheme::Ioe1, 'E', 'I' | 'E') => same,
            (TagScheme::Ioe2, prefix, _) => prefix == 'E',
            (TagScheme::Iobes, prefix, _) => matches!(prefix, 'E' | 'S'),
            (TagScheme::Bilou, prefix, _) => matches!(prefix, 'L' | 'U'),
            (TagScheme::Iob1 | TagScheme::Iob2 | TagScheme::Ioe1, ..) => false,
        }
    }
}

impl fmt::Display for TagScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Lists the entities of a sentence in their order.
///
/// An empty tag is an error, and so is a prefix that a strict scheme does not have. With
/// [`TagScheme::Conlleval`], prefixes other than `B`, `I`, `E`, `S` and `O` can make spans overlap.
pub fn entity_spans<S: AsRef<str>>(scheme: TagScheme, tags: &[S]) -> Result<Vec<EntitySpan<'_>>, ScoreError> {
    let tags = tags.iter().enumerate().map(|(at, tag)| scheme.split(tag.as_ref(), at));
    let tags: Vec<Tag<'_>> = tags.chain([Ok(OUTSIDE)]).collect::<Result<_, _>>()?;
    Ok(match scheme {
        TagScheme::Conlleval => conlleval_spans(&tags),
        _ => strict_spans(scheme, &tags),
    })
}

/// Lists the types that entities can have if tags are from `labels`, sorted and each once: an order
/// for counts that all ranks share.
pub fn entity_types<S: AsRef<str>>(scheme: TagScheme, labels: &[S]) -> Result<Vec<String>, ScoreError> {
    let mut types = Vec::new();
    for (at, label) in labels.iter().enumerate() {
        let tag = scheme.split(label.as_ref(), at)?;
        if !matches!(tag.prefix, 'O' | '.') {
            types.push(tag.entity_type.to_owned());
        }
    }
    types.sort_unstable();
    types.dedup();
    Ok(types)
}

/// Looks only at neighbours: where an entity ends, and where the last one began. An entity can end
/// that did not begin; its start is that of the one before, or of the sentence.
fn conlleval_spans<'a>(tags: &[Tag<'a>]) -> Vec<EntitySpan<'a>> {
    let (mut spans, mut previous, mut start) = (Vec::new(), OUTSIDE, 0);
    for (at, &tag) in tags.iter().enumerate() {
        if TagScheme::Conlleval.ends(previous, tag) {
            spans.push(EntitySpan { start, end: at, entity_type: previous.entity_type });
        }
        if TagScheme::Conlleval.begins(previous, tag) {
            start = at;
        }
        previous = tag;
    }
    spans
}

/// Follows each entity from its first token to its last one. `tags` ends with [`OUTSIDE`], which
/// closes the entity that is still open.
fn strict_spans<'a>(scheme: TagScheme, tags: &[Tag<'a>]) -> Vec<EntitySpan<'a>> {
    let (mut spans, mut open, mut previous) = (Vec::new(), None::<(usize, &str)>, OUTSIDE);
    for (at, &tag) in tags.iter().enumerate() {
        if let Some((start, entity_type)) = open
            && !scheme.continues(previous, tag)
        {
            if scheme.ends(previous, tag) {
                spans.push(EntitySpan { start, end: at, entity_type });
            }
            open = None;
        }
        if open.is_none() && scheme.begins(previous, tag) {
            open = Some((at, tag.entity_type));
        }
        previous = tag;
    }
    spans
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(scheme: TagScheme, tags: &str) -> String {
        let tags: Vec<&str> = tags.split_whitespace().collect();
        let spans = entity_spans(scheme, &tags).unwrap();
        let spans = spans.iter().map(|span| format!("{}:{}-{}", span.entity_type, span.start, span.end));
        spans.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn schemes_agree_on_well_formed_tags() {
        for (scheme, tags) in [
            (TagScheme::Conlleval, "B-PER I-PER B-PER O B-LOC"),
            (TagScheme::Conlleval, "B-PER E-PER S-PER O S-LOC"),
            (TagScheme::Iob1, "I-PER I-PER B-PER O I-LOC"),
            (TagScheme::Iob2, "B-PER I-PER B-PER O B-LOC"),
            (TagScheme::Ioe2, "I-PER E-PER E-PER O E-LOC"),
            (TagScheme::Iobes, "B-PER E-PER S-PER O S-LOC"),
            (TagScheme::Bilou, "B-PER L-PER U-PER O U-LOC"),
        ] {
            assert_eq!(shown(scheme, tags), "PER:0-2 PER:2-3 LOC:4-5", "{scheme}: {tags}");
        }
    }

    #[test]
    fn strict_schemes_ignore_what_they_do_not_allow() {
        assert_eq!(shown(TagScheme::Conlleval, "O I-PER I-PER I-LOC"), "PER:1-3 LOC:3-4");
        assert_eq!(shown(TagScheme::Iob2, "O I-PER I-PER I-LOC"), "");
        assert_eq!(shown(TagScheme::Iobes, "B-PER O B-PER E-PER E-PER"), "PER:2-4");
        assert_eq!(shown(TagScheme::Conlleval, "B I O I-"), "_:0-2 _:3-4");
    }

    #[test]
    fn empty_tags_and_unknown_prefixes_are_errors() {
        for scheme in TagScheme::ALL {
            assert_eq!(entity_spans(scheme, &["O", ""]), Err(ScoreError::EmptyTag { at: 1 }));
            assert_eq!(entity_spans(scheme, &["X-PER"]).is_ok(), scheme == TagScheme::Conlleval);
            assert_eq!(entity_spans::<&str>(scheme, &[]), Ok(Vec::new()));
            assert_eq!(serde_json::to_value(scheme).unwrap(), scheme.name());
        }
        let error = entity_spans(TagScheme::Iob2, &["O", "S-PER"]).unwrap_err();
        let message = "tag 1 of a sentence, `S-PER`, has a prefix that iob2 does not have (IOB)";
        assert_eq!(error.to_string(), message);
    }

    proptest! {
        #[test]
        fn spans_are_inside_the_sentence_and_of_a_listed_type(
            tags in prop::collection::vec("[BIESOULX.é-]-{0,2}[AB]{0,1}-?[AB]{0,1}|\\PC{1,4}", 0..12), at in 0usize..7,
        ) {
            let scheme = TagScheme::ALL[at];
            let Ok(spans) = entity_spans(scheme, &tags) else {
                prop_assert!(scheme != TagScheme::Conlleval);
                return Ok(());
            };
            let types = entity_types(scheme, &tags).unwrap();
            for span in &spans {
                prop_assert!(span.start < span.end && span.end <= tags.len());
                prop_assert!(types.iter().any(|listed| listed == span.entity_type));
            }
            prop_assert!(spans.is_sorted_by(|a, b| a.end < b.end));
            prop_assert!(scheme == TagScheme::Conlleval || spans.is_sorted_by(|a, b| a.end <= b.start));
        }
    }
}
