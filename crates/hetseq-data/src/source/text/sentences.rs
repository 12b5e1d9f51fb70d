//! Sentence splitting by a simple rule, independent of language and with few abbreviations. Called
//! by `documents`.
//!
//! A sentence ends after `.`, `!`, `?` or `…` and any closing quotes and brackets, if white space
//! follows and then something a sentence may begin with: a capital letter, a digit, an opening
//! quote or bracket, or a letter of a script without capitals. A full stop after a single capital
//! letter (`J. Smith`) or one of a few abbreviations (`Dr.`) does not end a sentence. Chinese and
//! Japanese full stops end sentences without white space.
//!
//! The rule also handles spaced punctuation, as in WikiText: `... the sea . It is ...`.

/// Abbreviations, in lower case, that are followed by a capital letter more often than they end a
/// sentence.
const ABBREVIATIONS: [&str; 32] = [
    "mr", "mrs", "ms", "dr", "prof", "st", "sr", "jr", "rev", "hon", "gen", "col", "lt", "sgt", "capt", "cmdr", "adm",
    "gov", "sen", "rep", "vs", "e.g", "i.e", "cf", "vol", "fig", "pp", "ca", "approx", "mt", "ft", "op",
];

/// Calls `found` with each sentence of a paragraph, trimmed.
pub(super) fn split<'a>(paragraph: &'a str, mut found: impl FnMut(&'a str)) {
    let mut start = 0;
    let mut is_quoting = false;
    let mut rest = paragraph.char_indices().peekable();
    while let Some((at, c)) = rest.next() {
        is_quoting ^= c == '"';
        let ends_alone = is_ideographic_end(c);
        if !ends_alone && !is_end(c) {
            continue;
        }
        let mut end = at + c.len_utf8();
        let mut after_space = false;
        while let Some(&(next_at, next)) = rest.peek() {
            let belongs = is_end(next) || is_ideographic_end(next) || is_closing(next);
            // Spaced punctuation has a space before the closing quote: `" Stop . " He went .`
            if next == ' ' && !after_space && closes_after_space(is_quoting, &paragraph[next_at..]) {
                after_space = true;
            } else if !belongs || (after_space && !is_closing(next)) {
                break;
            }
            is_quoting ^= next == '"';
            end = next_at + next.len_utf8();
            rest.next();
        }
        let is_over = ends_alone || begins_sentence(&paragraph[end..]);
        if is_over && !(c == '.' && is_abbreviation(&paragraph[start..at])) {
            emit(&paragraph[start..end], &mut found);
            start = end;
            is_quoting = false;
        }
    }
    emit(&paragraph[start..], &mut found);
}

fn emit<'a>(sentence: &'a str, found: &mut impl FnMut(&'a str)) {
    let sentence = sentence.trim();
    if !sentence.is_empty() {
        found(sentence);
    }
}

pub(super) fn is_end(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '…')
}

pub(super) fn is_ideographic_end(c: char) -> bool {
    matches!(c, '。' | '！' | '？' | '｡')
}

pub(super) fn is_closing(c: char) -> bool {
    matches!(c, '"' | '\'' | ')' | ']' | '}' | '”' | '’' | '»' | '«' | '」' | '』' | '）')
}

/// Whether `rest`, which begins with a space, continues with a quote or bracket that closes the
/// sentence before. A straight quote does if it is the second of a pair.
fn closes_after_space(is_quoting: bool, rest: &str) -> bool {
    match rest.chars().nth(1) {
        Some('"') => is_quoting,
        Some(c) => matches!(c, ')' | ']' | '”'),
        None => false,
    }
}

/// Whether `rest`, the text after a possible end of a sentence, begins another sentence.
fn begins_sentence(rest: &str) -> bool {
    if !rest.starts_with(char::is_whitespace) {
        return rest.is_empty();
    }
    let opening =
        |c: char| matches!(c, '"' | '\'' | '(' | '[' | '{' | '“' | '‘' | '«' | '»' | '¿' | '¡' | '–' | '—' | ' ');
    let first = rest.trim_start().trim_start_matches(opening).chars().next();
    first.is_none_or(|c| c.is_uppercase() || c.is_numeric() || (c.is_alphabetic() && !c.is_lowercase()))
}

/// Whether the last word of `before` is an abbreviation or initial, so that the full stop belongs
/// to it.
fn is_abbreviation(before: &str) -> bool {
    // With a space before the full stop, all punctuation is spaced, so the word is not an
    // abbreviation.
    let word = before.rsplit(|c: char| c.is_whitespace() || c == '(').next().unwrap_or_default();
    let mut chars = word.chars();
    match (chars.next(), chars.next()) {
        (None, _) => false,
        (Some(initial), None) => initial.is_uppercase(),
        _ => ABBREVIATIONS.contains(&word.to_lowercase().as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences(paragraph: &str) -> Vec<&str> {
        let mut found = Vec::new();
        split(paragraph, |sentence| found.push(sentence));
        found
    }

    #[test]
    fn plain_sentences() {
        assert_eq!(sentences("One. Two! Three? Four"), ["One.", "Two!", "Three?", "Four"]);
        assert_eq!(sentences("It cost 3.5 million. They paid."), ["It cost 3.5 million.", "They paid."]);
        assert_eq!(sentences("He left ... and came back."), ["He left ... and came back."]);
        assert_eq!(sentences("  "), [] as [&str; 0]);
        assert_eq!(sentences("Wait... What?! No."), ["Wait...", "What?!", "No."]);
        assert_eq!(sentences("See 4. 5 is odd."), ["See 4.", "5 is odd."]);
    }

    #[test]
    fn quotes_and_brackets_close_before_a_sentence_ends() {
        assert_eq!(
            sentences("\"Stop.\" He went. (So it was.) Then"),
            ["\"Stop.\"", "He went.", "(So it was.)", "Then"]
        );
        assert_eq!(sentences("“Nein!” Er ging. »Ja.« Gut."), ["“Nein!”", "Er ging.", "»Ja.«", "Gut."]);
    }

    #[test]
    fn abbreviations_and_initials_do_not_end_sentences() {
        assert_eq!(sentences("Dr. Smith met J. R. Jones. They spoke."), ["Dr. Smith met J. R. Jones.", "They spoke."]);
        assert_eq!(sentences("The lobster H. americanus is red."), ["The lobster H. americanus is red."]);
        assert_eq!(sentences("at 5 p.m. on Friday"), ["at 5 p.m. on Friday"]);
    }

    #[test]
    fn spaced_punctuation() {
        assert_eq!(
            sentences("It is closely related to H. americanus . It may grow . \" I won \" , he said . Then"),
            ["It is closely related to H. americanus .", "It may grow .", "\" I won \" , he said .", "Then"]
        );
        assert_eq!(sentences("He said \" stop . \" Then he went ."), ["He said \" stop . \"", "Then he went ."]);
        assert_eq!(sentences("vitamin K . They"), ["vitamin K .", "They"]);
    }

    #[test]
    fn other_scripts() {
        assert_eq!(sentences("我爱你。你呢？好！"), ["我爱你。", "你呢？", "好！"]);
        assert_eq!(sentences("彼は言った。「はい。」そして"), ["彼は言った。", "「はい。」", "そして"]);
        assert_eq!(sentences("هذا نص. وهذا آخر."), ["هذا نص.", "وهذا آخر."]);
        assert_eq!(sentences("Élan vital. Été."), ["Élan vital.", "Été."]);
    }

    #[test]
    fn only_white_space_is_lost() {
        for text in
            ["a.b.c. D. E.. F", "!!! A", ". . . .", "x\u{a0}. Y", "….A …. B", "1. 2. 3.", " \" . \" ", "\". A", "。 A"]
        {
            let joined: String = sentences(text).concat().chars().filter(|c| !c.is_whitespace()).collect();
            let whole: String = text.chars().filter(|c| !c.is_whitespace()).collect();
            assert_eq!(joined, whole);
        }
    }
}
