//! A vocabulary without its words: its size, its special tokens, and which pieces continue a word.
//! Used by [`pretrain`](crate::pretrain) and [`mask`](crate::mask).

/// The ids of BERT's five special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialTokens {
    pub pad: u32,
    pub unk: u32,
    pub cls: u32,
    pub sep: u32,
    pub mask: u32,
}

/// The properties of a vocabulary that masking and collating need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    pub special: SpecialTokens,
    flags: Vec<u8>,
    /// Ascending. [`Vocabulary::ordinary`] skips these.
    special_ids: Vec<u32>,
}

const IS_SPECIAL: u8 = 1;
const CONTINUES_WORD: u8 = 2;

impl Vocabulary {
    /// A vocabulary of `size` ids. Those in `special_ids` and `special` are special;
    /// `continuations` continue a word.
    pub fn new(
        size: usize,
        special: SpecialTokens,
        special_ids: impl IntoIterator<Item = u32>,
        continuations: impl IntoIterator<Item = u32>,
    ) -> Self {
        let mut flags = vec![0; size];
        let mut set = |id: u32, flag: u8| {
            if let Some(flags) = flags.get_mut(id as usize) {
                *flags |= flag;
            }
        };
        let SpecialTokens { pad, unk, cls, sep, mask } = special;
        special_ids.into_iter().chain([pad, unk, cls, sep, mask]).for_each(|id| set(id, IS_SPECIAL));
        continuations.into_iter().for_each(|id| set(id, CONTINUES_WORD));
        let special_ids = (0..size as u32).filter(|&id| flags[id as usize] & IS_SPECIAL != 0).collect();
        Vocabulary { special, flags, special_ids }
    }

    /// Number of ids. All ids are smaller.
    pub fn size(&self) -> usize {
        self.flags.len()
    }

    /// Whether `id` is a special token or outside the vocabulary.
    #[inline]
    pub fn is_special(&self, id: u32) -> bool {
        self.flags.get(id as usize).is_none_or(|flags| flags & IS_SPECIAL != 0)
    }

    /// Whether `id` is a piece that continues the word before it.
    #[inline]
    pub fn continues_word(&self, id: u32) -> bool {
        self.flags.get(id as usize).is_some_and(|flags| flags & CONTINUES_WORD != 0)
    }

    /// Number of ids that are not special.
    pub fn ordinary_tokens(&self) -> usize {
        self.flags.len() - self.special_ids.len()
    }

    /// Returns the `n`-th id that is not special, counted from zero.
    pub fn ordinary(&self, n: u32) -> u32 {
        self.special_ids.iter().fold(n, |id, &special| if id >= special { id + 1 } else { id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_ids_are_those_between_the_special_ones() {
        let special = SpecialTokens { pad: 0, unk: 3, cls: 4, sep: 5, mask: 9 };
        let vocabulary = Vocabulary::new(12, special, [7], [8, 10]);
        let ordinary: Vec<u32> = (0..vocabulary.ordinary_tokens() as u32).map(|n| vocabulary.ordinary(n)).collect();
        assert_eq!(ordinary, [1, 2, 6, 8, 10, 11]);
        assert_eq!((0..12).filter(|&id| vocabulary.is_special(id)).collect::<Vec<_>>(), [0, 3, 4, 5, 7, 9]);
        assert!(vocabulary.is_special(12), "an id outside the vocabulary is never masked");
        assert!(vocabulary.continues_word(8) && !vocabulary.continues_word(6) && !vocabulary.continues_word(99));
    }
}
