//! Entity tag schemes: which one a file uses, and which of its tags break it. Called by tasks for
//! their report.
//!
//! Broken tags are counted, never changed and never an error: published data has some, and scores
//! are defined for them too. A tag is `O`, or a prefix (`B`, `I`, `E`, `S`) with `-` and a type, or
//! a prefix alone.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::label_set::OUTSIDE;
use crate::source::conll::ConllFile;

/// How tags mark the words of an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TagPrefixes {
    /// `I`, and `B` only for an entity that directly follows another of its type.
    Iob1,
    /// `B` for the first word of every entity, `I` for the others. Also called BIO.
    #[serde(alias = "bio")]
    Iob2,
    /// `B I E` for entities of several words, `S` for those of one word.
    Iobes,
}

impl TagPrefixes {
    pub fn name(self) -> &'static str {
        match self {
            TagPrefixes::Iob1 => "IOB1",
            TagPrefixes::Iob2 => "IOB2",
            TagPrefixes::Iobes => "IOBES",
        }
    }
}

/// The tags of a file, compared with a scheme.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TagReport {
    /// The given or detected scheme; `None` if the labels are not entity tags.
    pub scheme: Option<TagPrefixes>,
    /// Words whose tag breaks the scheme.
    pub malformed_tags: usize,
    /// Sentences with such words.
    pub malformed_sentences: usize,
    /// The line and the label of the first such word.
    pub first: Option<(usize, String)>,
}

impl TagReport {
    /// Compares the labels of a file with a scheme, or detects the scheme.
    ///
    /// Detected is IOBES if a tag has the prefix `E` or `S`, else IOB1 or IOB2, whichever fewer
    /// tags break; IOB2 if they are equal.
    pub fn new(file: &ConllFile, scheme: Option<TagPrefixes>) -> Self {
        let tags: Vec<Option<Tag>> = file.label_names().iter().map(|label| Tag::parse(label)).collect();
        let check = |scheme| Self::compare(file, &tags, scheme);
        if let Some(scheme) = scheme {
            return check(scheme);
        }
        let has = |wanted: &[Prefix]| tags.iter().flatten().any(|tag| wanted.contains(&tag.prefix));
        if tags.iter().any(Option::is_none) || !has(&[Prefix::B, Prefix::I, Prefix::E, Prefix::S]) {
            return TagReport { scheme: None, malformed_tags: 0, malformed_sentences: 0, first: None };
        }
        if has(&[Prefix::E, Prefix::S]) {
            return check(TagPrefixes::Iobes);
        }
        let [one, two] = [TagPrefixes::Iob1, TagPrefixes::Iob2].map(check);
        if one.malformed_tags < two.malformed_tags { one } else { two }
    }

    fn compare(file: &ConllFile, tags: &[Option<Tag>], scheme: TagPrefixes) -> Self {
        let tag = |word: usize| tags.get(*file.label_indices().get(word)? as usize).copied().flatten();
        let mut report = TagReport { scheme: Some(scheme), malformed_tags: 0, malformed_sentences: 0, first: None };
        for sentence in 0..file.sentences() {
            let words = file.sentence(sentence);
            let before = report.malformed_tags;
            for word in words.clone().filter(|_| file.has_labels()) {
                let previous = word.checked_sub(1).filter(|at| words.contains(at)).and_then(tag);
                let next = Some(word + 1).filter(|at| words.contains(at)).and_then(tag);
                if tag(word).is_some_and(|tag| tag.fits(scheme, previous, next)) {
                    continue;
                }
                report.malformed_tags += 1;
                if report.first.is_none() {
                    report.first = Some((file.line(word), file.label(word).unwrap_or_default().to_owned()));
                }
            }
            report.malformed_sentences += usize::from(report.malformed_tags > before);
        }
        report
    }
}

impl fmt::Display for TagReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(scheme) = self.scheme else { return f.write_str("labels are not entity tags") };
        write!(f, "tag scheme {}", scheme.name())?;
        match &self.first {
            None => f.write_str(", all tags are well-formed"),
            Some((line, label)) => write!(
                f,
                ", {} malformed tags in {} sentences, the first is {label} in line {line}",
                self.malformed_tags, self.malformed_sentences
            ),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prefix {
    O,
    B,
    I,
    E,
    S,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tag<'a> {
    prefix: Prefix,
    kind: &'a str,
}

impl<'a> Tag<'a> {
    fn parse(label: &'a str) -> Option<Self> {
        if label == OUTSIDE {
            return Some(Tag { prefix: Prefix::O, kind: "" });
        }
        let (prefix, kind) = label.split_once('-').unwrap_or((label, ""));
        let prefix = match prefix {
            "B" => Prefix::B,
            "I" => Prefix::I,
            "E" => Prefix::E,
            "S" => Prefix::S,
            _ => return None,
        };
        Some(Tag { prefix, kind })
    }

    /// Whether a scheme allows this tag between its neighbours in the sentence.
    fn fits(self, scheme: TagPrefixes, previous: Option<Tag<'_>>, next: Option<Tag<'_>>) -> bool {
        let is = |tag: Option<Tag<'_>>, prefixes: [Prefix; 2]| {
            tag.is_some_and(|tag| tag.kind == self.kind && prefixes.contains(&tag.prefix))
        };
        let follows = || is(previous, [Prefix::B, Prefix::I]);
        let continues = || is(next, [Prefix::I, Prefix::E]);
        match (scheme, self.prefix) {
            (_, Prefix::O) | (TagPrefixes::Iob1, Prefix::I) | (TagPrefixes::Iob2, Prefix::B) => true,
            (TagPrefixes::Iobes, Prefix::S) => true,
            (TagPrefixes::Iob1, Prefix::B) | (TagPrefixes::Iob2, Prefix::I) | (TagPrefixes::Iobes, Prefix::E) => {
                follows()
            }
            (TagPrefixes::Iobes, Prefix::B) => continues(),
            (TagPrefixes::Iobes, Prefix::I) => follows() && continues(),
            (TagPrefixes::Iob1 | TagPrefixes::Iob2, Prefix::E | Prefix::S) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::conll::{ConllColumns, ConllLabels};

    /// The report of sentences, which are separated by `|`.
    fn report(labels: &str, scheme: Option<TagPrefixes>) -> TagReport {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.conll");
        let line = |label: &str| if label == "|" { "\n".to_owned() } else { format!("w\t{label}\n") };
        std::fs::write(&path, labels.split(' ').map(line).collect::<String>()).unwrap();
        TagReport::new(&ConllFile::read(&path, &ConllColumns::default(), ConllLabels::Required).unwrap(), scheme)
    }

    #[test]
    fn schemes_are_detected() {
        for (labels, expected) in [
            ("O O O", None),
            ("NN VB O", None),
            ("B-x I-x O B-y B-y", Some(TagPrefixes::Iob2)),
            ("I-x I-x O I-y B-y", Some(TagPrefixes::Iob1)),
            ("O | B-x", Some(TagPrefixes::Iob2)),
            ("I-x O", Some(TagPrefixes::Iob1)),
            ("B-x E-x O S-y", Some(TagPrefixes::Iobes)),
            ("B I O", Some(TagPrefixes::Iob2)),
        ] {
            let report = report(labels, None);
            assert_eq!((report.scheme, report.malformed_tags), (expected, 0), "{labels}");
        }
    }

    #[test]
    fn malformed_tags_are_counted_where_they_are() {
        use TagPrefixes::{Iob1, Iob2, Iobes};
        for (labels, scheme, tags, sentences, first) in [
            ("B-x I-y O I-x | I-x I-x | O", Iob2, 3, 2, Some((2, "I-y"))),
            // A sentence begins without a word before it.
            ("B-x | I-x", Iob2, 1, 1, Some((3, "I-x"))),
            ("B-x I-x B-x B-y", Iob1, 2, 1, Some((1, "B-x"))),
            ("B-x I-x E-x S-x | B-x O | I-x E-x | E-y B-y", Iobes, 4, 3, Some((6, "B-x"))),
            ("B-x E-x", Iob2, 1, 1, Some((2, "E-x"))),
            ("B-x NN", Iob2, 1, 1, Some((2, "NN"))),
            ("B-x I-x", Iob2, 0, 0, None),
        ] {
            let report = report(labels, Some(scheme));
            let found = report.first.as_ref().map(|(line, label)| (*line, label.as_str()));
            assert_eq!(
                (report.malformed_tags, report.malformed_sentences, found),
                (tags, sentences, first),
                "{labels}"
            );
        }
    }

    #[test]
    fn a_report_is_one_line() {
        let text = |labels| report(labels, None).to_string();
        assert_eq!(text("NN VB"), "labels are not entity tags");
        assert_eq!(text("B-x I-x"), "tag scheme IOB2, all tags are well-formed");
        let expected = "tag scheme IOB2, 1 malformed tags in 1 sentences, the first is I-y in line 4";
        assert_eq!(text("B-x B-x O I-y"), expected);
    }
}
