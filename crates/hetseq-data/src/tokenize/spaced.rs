//! Words with the space before them: what vocabularies of [`Subwords`](super::Subwords) are learnt from.
//!
//! Where a text is encoded, only spaces part words. Where a vocabulary is learnt, they are cut further, so that no piece is
//! `street.` beside `street` and `street,`: into stretches of letters and digits, and of other signs. That costs nothing in
//! exactness, because it only decides which pieces there are.

use tokenizers::NormalizedString;

/// What stands for the space before a word.
pub(super) const SPACE: char = '\u{2581}';
/// No piece goes on after it: so none can be `</s>`, `<unk>` or `<pad>`.
pub(super) const OPENS_SPECIAL: char = '<';
/// Of a stretch: scripts without spaces have words as long as sentences.
pub(super) const LONGEST_STRETCH: usize = 64;

/// Calls `found` with each stretch of a line. `buffer` is overwritten.
pub fn each_stretch(line: &str, buffer: &mut String, mut found: impl FnMut(&str)) {
    if line.is_ascii() {
        return each_in_normal_form(line, buffer, &mut found);
    }
    let mut normalized = NormalizedString::from(line);
    normalized.nfc();
    each_in_normal_form(normalized.get(), buffer, &mut found);
}

fn each_in_normal_form(line: &str, buffer: &mut String, found: &mut impl FnMut(&str)) {
    for word in line.trim().split(' ').filter(|word| !word.is_empty()) {
        buffer.clear();
        buffer.push(SPACE);
        let (mut letters, mut last) = (1, None);
        for letter in word.chars() {
            let is_cut = last.is_some_and(|last| last == OPENS_SPECIAL || is_sign(last) != is_sign(letter));
            if is_cut || letters == LONGEST_STRETCH {
                found(buffer);
                buffer.clear();
                letters = 0;
            }
            buffer.push(letter);
            letters += 1;
            last = Some(letter);
        }
        found(buffer);
    }
}

/// Whether a character is neither letter nor digit nor a mark on one. By blocks: marks are many, signs live together.
fn is_sign(c: char) -> bool {
    let is_there = c.is_ascii()
        || matches!(c,
            '\u{a0}'..='\u{bf}' | '\u{d7}' | '\u{f7}' | '\u{2010}'..='\u{205e}' | '\u{20a0}'..='\u{20cf}'
            | '\u{2100}'..='\u{2bff}' | '\u{2e00}'..='\u{2e7f}' | '\u{3000}'..='\u{303f}' | '\u{ff00}'..='\u{ffef}'
            | '\u{1f000}'..='\u{1faff}');
    is_there && !c.is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretches(line: &str) -> Vec<String> {
        let mut found = Vec::new();
        each_stretch(line, &mut String::new(), |stretch| found.push(stretch.to_owned()));
        found
    }

    #[test]
    fn words_begin_with_a_space_and_are_cut_at_signs() {
        assert_eq!(stretches(" A dog, (two) "), ["▁A", "▁dog", ",", "▁(", "two", ")"]);
        assert_eq!(stretches("x</s> <unk>"), ["▁x", "<", "/", "s", ">", "▁<", "unk", ">"]);
        assert_eq!(stretches("e\u{301}te\u{301}  na\u{308}chste"), ["▁\u{e9}t\u{e9}", "▁n\u{e4}chste"]);
        assert_eq!(stretches("\u{939}\u{93f}\u{928}\u{94d}\u{926}\u{940}\u{964}").len(), 1, "marks are part of words");
        assert_eq!(stretches("\u{6211}\u{7231}\u{3002}\u{4f60}"), ["▁\u{6211}\u{7231}", "\u{3002}", "\u{4f60}"]);
        assert_eq!(stretches(" "), [] as [&str; 0]);
    }

    #[test]
    fn nothing_is_lost_in_a_word_without_end() {
        let found = stretches(&"x".repeat(200));
        assert_eq!(found.concat(), format!("▁{}", "x".repeat(200)));
        assert!(found.iter().all(|stretch| stretch.chars().count() <= LONGEST_STRETCH));
    }
}
