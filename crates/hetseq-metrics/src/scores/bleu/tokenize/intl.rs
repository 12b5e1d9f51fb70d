//! The tokenizer `intl`: separates punctuation unless it is between numbers, and all symbols, in
//! all scripts.
//!
//! Characters are classified as in Unicode 16. Later ones count as letters.

use std::sync::LazyLock;

use regex_syntax::hir::{Class as CharacterClass, HirKind};

use super::{Around, space_out, space_out_pairs};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Other,
    Punctuation,
    Symbol,
    Number,
}

pub(super) fn apply(line: &str) -> String {
    let is = |c: char, class: Class| class_of(c) == class;
    let line = space_out_pairs(line, Around::Second, |before, sign| {
        !is(before, Class::Number) && is(sign, Class::Punctuation)
    });
    let line =
        space_out_pairs(&line, Around::First, |sign, after| is(sign, Class::Punctuation) && !is(after, Class::Number));
    space_out(&line, |c| is(c, Class::Symbol))
}

fn class_of(c: char) -> Class {
    /// One byte per code point. Later only the pages of scripts in use are accessed.
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
        // Cannot happen with the crate's built-in tables; a test would fail.
        _ => Vec::new(),
    }
}
