//! The mentions of a CoNLL file and their entities. Pure; called by `entity_samples.rs`, which
//! documents the rules.

use std::collections::HashMap;
use std::ops::Range;

use hetseq_metrics::{GoldEntity, GoldMention, TagScheme, entity_spans};
use serde::Serialize;

use crate::error::{DataError, FinetuneError};
use crate::source::conll::ConllFile;
use crate::source::entity_table::EntityTable;

/// Texts in the entity column that name no entity.
const UNKNOWN: [&str; 6] = ["", "-", "_", "O", "NIL", "--NME--"];

/// The number of names in [`MentionCounts::examples`].
const EXAMPLES: usize = 5;

/// The mentions of a file and what is known of their entities, for the report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MentionCounts {
    pub mentions: usize,
    /// Mentions with an entity of the table: linking is trained on them.
    pub linked: usize,
    /// Mentions whose entity the file does not name.
    pub unknown: usize,
    /// Mentions with an entity that is not in the table.
    pub out_of_dictionary: usize,
    /// Different names of such entities.
    pub out_of_dictionary_names: usize,
    /// The most frequent of these names.
    pub examples: Vec<String>,
    /// Words that name an entity, but are in no mention, or in a mention whose first word names
    /// none.
    pub ignored_entities: usize,
    /// Mentions of which even the first word was lost, because their sentence was truncated.
    pub lost: usize,
}

/// The mentions of each sentence. Words are numbered within the sentence.
#[derive(Debug, Default)]
pub(super) struct FileMentions {
    pub(super) sentences: Vec<Vec<GoldMention>>,
    pub(super) counts: MentionCounts,
}

impl FileMentions {
    pub(super) fn new(file: &ConllFile, table: &EntityTable) -> Result<Self, DataError> {
        if !file.has_entities() {
            return Err(FinetuneError::NoEntities { path: file.path().to_owned() }.into());
        }
        let mut found = FileMentions::default();
        let mut missing: HashMap<&str, usize> = HashMap::new();
        for words in (0..file.sentences()).map(|sentence| file.sentence(sentence)) {
            let mut is_used = vec![false; words.len()];
            let mut mentions = Vec::new();
            for span in spans(file, words.clone()) {
                let name = entity_of(file, words.start + span.start..words.start + span.end)?;
                let entity = match name.map(|name| (name, table.id(name))) {
                    Some((_, Some(id))) => GoldEntity::Linked(id),
                    Some((name, None)) => {
                        *missing.entry(name).or_default() += 1;
                        GoldEntity::OutOfDictionary
                    }
                    None => GoldEntity::Unknown,
                };
                if let Some(used) = is_used.get_mut(span.clone()).filter(|_| name.is_some()) {
                    used.fill(true);
                }
                found.counts.add(entity);
                mentions.push(GoldMention { words: span, entity });
            }
            let is_ignored = |(word, is_used): (usize, bool)| !is_used && named(file, word).is_some();
            found.counts.ignored_entities += words.zip(is_used).filter(|&word| is_ignored(word)).count();
            found.sentences.push(mentions);
        }
        found.counts.out_of_dictionary_names = missing.len();
        let mut missing: Vec<(&str, usize)> = missing.into_iter().collect();
        missing.sort_unstable_by(|(a, a_times), (b, b_times)| b_times.cmp(a_times).then(a.cmp(b)));
        found.counts.examples = missing.iter().take(EXAMPLES).map(|(name, _)| (*name).to_owned()).collect();
        Ok(found)
    }
}

impl MentionCounts {
    fn add(&mut self, entity: GoldEntity) {
        self.mentions += 1;
        *match entity {
            GoldEntity::Linked(_) => &mut self.linked,
            GoldEntity::Unknown => &mut self.unknown,
            GoldEntity::OutOfDictionary => &mut self.out_of_dictionary,
        } += 1;
    }
}

/// The mentions of a sentence, in words of the sentence.
fn spans(file: &ConllFile, words: Range<usize>) -> Vec<Range<usize>> {
    let tags: Vec<&str> = words.map(|word| file.label(word).unwrap_or("O")).collect();
    // This scheme accepts any tags that are not empty, and the file has no empty ones.
    let spans = entity_spans(TagScheme::Conlleval, &tags).unwrap_or_default();
    spans.into_iter().map(|span| span.start..span.end).collect()
}

/// The entity that a word names.
fn named(file: &ConllFile, word: usize) -> Option<&str> {
    file.entity(word).filter(|name| !UNKNOWN.contains(name))
}

/// The entity that the first word of a mention names. It is an error if another word names another
/// one.
fn entity_of(file: &ConllFile, mention: Range<usize>) -> Result<Option<&str>, DataError> {
    let mut words = mention.clone().filter_map(|word| Some((word, named(file, word)?)));
    let Some((first_word, first)) = words.next() else { return Ok(None) };
    match words.find(|(_, name)| *name != first) {
        None => Ok(Some(first).filter(|_| first_word == mention.start)),
        Some((word, entity)) => {
            let (path, entity, first) = (file.path().to_owned(), entity.to_owned(), first.to_owned());
            let (line, first_line) = (file.line(word), file.line(mention.start));
            Err(FinetuneError::TwoEntities { path, line, entity, first_line, first }.into())
        }
    }
}
