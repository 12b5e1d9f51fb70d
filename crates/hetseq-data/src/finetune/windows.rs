//! Cuts a sentence that is too long for the model into windows of words. Pure; called by
//! `token_samples.rs`.
//!
//! Windows overlap, so that words at a border have context. Of the shared words, the first half
//! have their labels in the window before, the others in the window after: a word is labelled once,
//! where it has words on both sides.

use std::ops::Range;

/// A window: the words it holds, and those of them that have labels in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WordWindow {
    pub(super) words: Range<usize>,
    pub(super) labelled: Range<usize>,
}

/// The windows of a sentence with `words` words. `start` gives the number of tokens before a word,
/// also for the end of the sentence. A word has at least one token and at most `max_tokens`.
///
/// Each window holds as many words as fit into `max_tokens`. It shares at most `overlap` words with
/// the next, and at most half of its tokens: else a large overlap would give a window for each
/// word.
pub(super) fn windows(
    words: usize,
    start: impl Fn(usize) -> usize,
    max_tokens: usize,
    overlap: usize,
) -> Vec<WordWindow> {
    let tokens = |words: Range<usize>| start(words.end) - start(words.start);
    let mut windows: Vec<WordWindow> = Vec::new();
    let (mut first, mut labelled) = (0, 0);
    while labelled < words {
        // At least one word, whatever the caller passes.
        let mut end = first + 1;
        while end < words && tokens(first..end + 1) <= max_tokens {
            end += 1;
        }
        if end >= words {
            windows.push(WordWindow { words: first..words, labelled: labelled..words });
            break;
        }
        // The next window also holds at least the word after the shared ones, so that it advances.
        let mut next = end;
        while end - next < overlap
            && next > first + 1
            && tokens(next - 1..end) <= max_tokens / 2
            && tokens(next - 1..end + 1) <= max_tokens
        {
            next -= 1;
        }
        let border = (next + end).div_ceil(2);
        windows.push(WordWindow { words: first..end, labelled: labelled..border });
        (first, labelled) = (next, border);
    }
    windows
}

/// The number of words of which at least the first token is in the first `max_tokens` tokens.
pub(super) fn words_that_fit(words: usize, start: impl Fn(usize) -> usize, max_tokens: usize) -> usize {
    (0..words).take_while(|&word| start(word) - start(0) < max_tokens).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(lengths: &[usize], max_tokens: usize, overlap: usize) -> Vec<WordWindow> {
        windows(lengths.len(), |word| lengths[..word].iter().sum(), max_tokens, overlap)
    }

    fn window(words: Range<usize>, labelled: Range<usize>) -> WordWindow {
        WordWindow { words, labelled }
    }

    #[test]
    fn shared_words_are_labelled_on_the_side_with_more_context() {
        assert_eq!(cut(&[1; 5], 5, 2), [window(0..5, 0..5)]);
        assert_eq!(cut(&[1; 10], 6, 0), [window(0..6, 0..6), window(6..10, 6..10)]);
        assert_eq!(cut(&[1; 10], 6, 2), [window(0..6, 0..5), window(4..10, 5..10)]);
        assert_eq!(cut(&[1; 12], 6, 3), [window(0..6, 0..5), window(3..9, 5..8), window(6..12, 8..12)]);
        // The overlap is at most half of a window, here two words of two tokens.
        assert_eq!(cut(&[2; 6], 8, 9), [window(0..4, 0..3), window(2..6, 3..6)]);
        // No room for context beside a word that fills a window.
        assert_eq!(cut(&[1, 1, 6, 1], 6, 2), [window(0..2, 0..2), window(2..3, 2..3), window(3..4, 3..4)]);
        assert_eq!(cut(&[], 6, 2), []);
    }

    #[test]
    fn a_word_fits_with_its_first_token() {
        let fit = |lengths: &[usize]| words_that_fit(lengths.len(), |word| lengths[..word].iter().sum(), 6);
        assert_eq!([fit(&[2, 2, 2]), fit(&[2, 3, 2, 1]), fit(&[6, 1]), fit(&[])], [3, 3, 1, 0]);
    }

    proptest! {
        #[test]
        fn every_word_is_labelled_once_and_windows_fit(
            lengths in prop::collection::vec(1usize..=6, 0..60), max_tokens in 6usize..20, overlap in 0usize..30,
        ) {
            let windows = cut(&lengths, max_tokens, overlap);
            let labelled: Vec<usize> = windows.iter().flat_map(|window| window.labelled.clone()).collect();
            prop_assert_eq!(labelled, (0..lengths.len()).collect::<Vec<_>>());
            for (at, window) in windows.iter().enumerate() {
                prop_assert!(lengths[window.words.clone()].iter().sum::<usize>() <= max_tokens);
                prop_assert!(!window.labelled.is_empty());
                prop_assert!(window.words.start <= window.labelled.start && window.labelled.end <= window.words.end);
                if at > 0 {
                    prop_assert!(window.words.start > windows[at - 1].words.start);
                    prop_assert!(windows[at - 1].words.end - window.words.start <= overlap);
                }
            }
        }
    }
}
