//! Detects how a file divides sentences into lines, from its beginning. Called by
//! `documents`.

use serde::{Deserialize, Serialize};

use super::sentences::{is_closing, is_end, is_ideographic_end, split};

/// What one line of a text file contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SentenceStyle {
    /// One sentence.
    Lines,
    /// One or more complete sentences.
    Paragraphs,
    /// A piece of text wrapped at some width: the lines of a paragraph belong together.
    Wrapped,
}

/// Maximum width of wrapped text, in bytes. A longer line is a paragraph.
const MAX_WRAP_BYTES: usize = 140;
const MIN_WRAP_BYTES: usize = 40;

impl SentenceStyle {
    /// Detects the style of a file from its beginning.
    pub fn detect(beginning: &str) -> Self {
        let lines: Vec<&str> = beginning.lines().map(str::trim).collect();
        let filled = lines.iter().filter(|line| !line.is_empty()).count();
        if filled == 0 {
            return SentenceStyle::Paragraphs;
        }
        if is_wrapped(&lines) {
            return SentenceStyle::Wrapped;
        }
        let mut sentences = 0;
        lines.iter().for_each(|line| split(line, |_| sentences += 1));
        // One sentence per line. The margin is for the few lines that the rule splits wrongly.
        if sentences as f64 <= 1.25 * filled as f64 { SentenceStyle::Lines } else { SentenceStyle::Paragraphs }
    }
}

/// Wrapped text has lines of similar length that end anywhere in a sentence. Only lines followed by
/// another line count.
fn is_wrapped(lines: &[&str]) -> bool {
    let inner: Vec<&str> =
        lines.windows(2).filter(|pair| !pair[0].is_empty() && !pair[1].is_empty()).map(|pair| pair[0]).collect();
    let mut lengths: Vec<usize> = inner.iter().map(|line| line.len()).collect();
    lengths.sort_unstable();
    // The 95th percentile, because a few long lines do not make a text unwrapped.
    let Some(&width) = lengths.get(lengths.len() * 19 / 20) else { return false };
    if inner.len() < 3 || !(MIN_WRAP_BYTES..=MAX_WRAP_BYTES).contains(&width) {
        return false;
    }
    let full = lengths.iter().filter(|&&length| 4 * length >= 3 * width).count();
    let ended = inner.iter().filter(|line| ends_sentence(line)).count();
    10 * full >= 7 * inner.len() && 10 * ended < 4 * inner.len()
}

fn ends_sentence(line: &str) -> bool {
    line.trim_end_matches(|c| is_closing(c) || c == ' ').ends_with(|c| is_end(c) || is_ideographic_end(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_styles_are_detected() {
        let lines = "The sea is wide.\nIt has no end.\nDr. Smith saw it.\n\nAnother text.\nAs short as the first.\n";
        assert_eq!(SentenceStyle::detect(lines), SentenceStyle::Lines);
        let paragraphs = " = Sea = \n\n The sea is wide . It has no end . We saw it .\n It is blue . So it is .\n";
        assert_eq!(SentenceStyle::detect(paragraphs), SentenceStyle::Paragraphs);
        let wrapped = "It was a bright cold day in a month that I do not recall, and the\n\
                       clocks in the town were striking an hour that no person ever heard\n\
                       of. He went up the stairs, which were many, and rested on each of the\n\
                       seven landings. Then he came to a door\n\nand stopped.\n";
        assert_eq!(SentenceStyle::detect(wrapped), SentenceStyle::Wrapped);
        assert_eq!(SentenceStyle::detect("\n\n"), SentenceStyle::Paragraphs);
    }

    #[test]
    fn lines_without_punctuation_are_sentences() {
        let lyrics =
            "row row row your boat\ngently down the stream\nmerrily merrily merrily merrily\nlife is but a dream\n";
        assert_eq!(SentenceStyle::detect(lyrics), SentenceStyle::Lines);
    }
}
