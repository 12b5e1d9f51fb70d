//! Pre-tokenization for training the vocabularies of [`Subwords`](super::Subwords). Called by
//! [`prep`](crate::prep).
//!
//! The encoder splits text only at spaces. Training also splits words between letters or digits and
//! other symbols, so that `street.` and `street,` do not become pieces beside `street`. Encoding
//! stays exact, because training only decides which pieces exist.

use tokenizers::NormalizedString;

/// The character that represents the space before a word.
pub(super) const SPACE: char = '\u{2581}';
/// No piece continues after this character, so none can be `</s>`, `<unk>` or `<pad>`.
pub(super) const OPENS_SPECIAL: char = '<';
/// Maximum characters of a pre-token, because scripts without spaces have words as long as
/// sentences.
pub(super) const MAX_PRE_TOKEN_CHARS: usize = 64;

/// Calls `found` with each pre-token of a line. `buffer` is overwritten.
pub fn for_each_pre_token(line: &str, buffer: &mut String, mut found: impl FnMut(&str)) {
    if line.is_ascii() {
        return for_each_normalized(line, buffer, &mut found);
    }
    let mut normalized = NormalizedString::from(line);
    normalized.nfc();
    for_each_normalized(normalized.get(), buffer, &mut found);
}

fn for_each_normalized(line: &str, buffer: &mut String, found: &mut impl FnMut(&str)) {
    for word in line.trim().split(' ').filter(|word| !word.is_empty()) {
        buffer.clear();
        buffer.push(SPACE);
        let (mut length, mut last) = (1, None);
        for c in word.chars() {
            let is_boundary = last.is_some_and(|last| last == OPENS_SPECIAL || is_symbol(last) != is_symbol(c));
            if is_boundary || length == MAX_PRE_TOKEN_CHARS {
                found(buffer);
                buffer.clear();
                length = 0;
            }
            buffer.push(c);
            length += 1;
            last = Some(c);
        }
        found(buffer);
    }
}

/// Whether a character is neither a letter nor a digit nor a combining mark. Decided by Unicode
/// blocks, because symbols are in few blocks and marks are in many.
fn is_symbol(c: char) -> bool {
    let is_in_block = c.is_ascii()
        || matches!(c,
            '\u{a0}'..='\u{bf}' | '\u{d7}' | '\u{f7}' | '\u{2010}'..='\u{205e}' | '\u{20a0}'..='\u{20cf}'
            | '\u{2100}'..='\u{2bff}' | '\u{2e00}'..='\u{2e7f}' | '\u{3000}'..='\u{303f}' | '\u{ff00}'..='\u{ffef}'
            | '\u{1f000}'..='\u{1faff}');
    is_in_block && !c.is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pre_tokens(line: &str) -> Vec<String> {
        let mut found = Vec::new();
        for_each_pre_token(line, &mut String::new(), |token| found.push(token.to_owned()));
        found
    }

    #[test]
    fn words_begin_with_a_space_and_are_split_at_symbols() {
        assert_eq!(pre_tokens(" A dog, (two) "), ["▁A", "▁dog", ",", "▁(", "two", ")"]);
        assert_eq!(pre_tokens("x</s> <unk>"), ["▁x", "<", "/", "s", ">", "▁<", "unk", ">"]);
        assert_eq!(pre_tokens("e\u{301}te\u{301}  na\u{308}chste"), ["▁\u{e9}t\u{e9}", "▁n\u{e4}chste"]);
        assert_eq!(pre_tokens("\u{939}\u{93f}\u{928}\u{94d}\u{926}\u{940}\u{964}").len(), 1, "marks are part of words");
        assert_eq!(pre_tokens("\u{6211}\u{7231}\u{3002}\u{4f60}"), ["▁\u{6211}\u{7231}", "\u{3002}", "\u{4f60}"]);
        assert_eq!(pre_tokens(" "), [] as [&str; 0]);
    }

    #[test]
    fn an_endless_word_is_split_without_loss() {
        let found = pre_tokens(&"x".repeat(200));
        assert_eq!(found.concat(), format!("▁{}", "x".repeat(200)));
        assert!(found.iter().all(|token| token.chars().count() <= MAX_PRE_TOKEN_CHARS));
    }
}
