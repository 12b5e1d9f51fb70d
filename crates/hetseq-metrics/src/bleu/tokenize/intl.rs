//! The tokeniser `intl`: punctuation apart unless it is between numbers, symbols apart everywhere, of all scripts.
//!
//! Characters are classed as in Unicode 16. Those that came later count as letters do.

use std::sync::LazyLock;

use regex_syntax::hir::{Class as CharacterClass, HirKind};

use super::{Around, part, part_pairs};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Other,
    Punctuation,
    Symbol,
    Number,
}

pub(super) fn apply(line: &str) -> String {
    let is = |c: char, class: Class| class_of(c) == class;
    let line =
        part_pairs(line, Around::Second, |before, sign| !is(before, Class::Number) && is(sign, Class::Punctuation));
    let line =
        part_pairs(&line, Around::First, |sign, after| is(sign, Class::Punctuation) && !is(after, Class::Number));
    part(&line, |c| is(c, Class::Symbol))
}

fn class_of(c: char) -> Class {
    /// One byte per code point; only the pages of scripts in use are ever touched again.
    static CLASSES: LazyLock<Vec<Class>> = LazyLock::new(|| {
        let mut classes = vec![Class::Other; u32::from(char::MAX) as usize + 1];
        for (name, class) in [("P", Class::Punctuation), ("S", Class::Symbol), ("N", Class::Number)] {
            for (first, last) in ranges(name) {
                classes[first as usize..=last as usize].fill(class);
            }
        }
        classes
    });
    CLASSES.get(u32::from(c) as usize).copied().unwrap_or(Class::Other)
}

/// The characters of a general category.
fn ranges(category: &str) -> Vec<(u32, u32)> {
    let parsed = regex_syntax::parse(&format!(r"\p{{{category}}}"));
    match parsed.map(|parsed| parsed.into_kind()) {
        Ok(HirKind::Class(CharacterClass::Unicode(class))) => {
            class.iter().map(|range| (range.start().into(), range.end().into())).collect()
        }
        // Not with the crate's tables built in; a test would see it.
        _ => Vec::new(),
    }
}
