//! Beam search, for whatever gives scores to continuations. Pure: it decides, [`Continue`] computes.
//!
//! Scores of finished hypotheses are sums of log-probabilities divided by length^penalty (the end counts as a token). The rules
//! are those of transformers' `generate` with `early_stopping = False`, so that both find the same: of the `2 beam` best continuations,
//! those that end count if they are among the first `beam`; a sentence is done when it has `beam` finished hypotheses and
//! no open one is better by its score of now. With a beam of one it is done at the first end: that is greedy.

/// What continues hypotheses. Rows are hypotheses; those of a sentence follow each other, as many of each.
pub trait Continue {
    /// Appends a token to each row; of each row the best `count` continuations as (token, log-probability), best first.
    fn step(&mut self, tokens: &[u32], count: usize) -> Vec<Vec<(u32, f32)>>;
    /// Goes on with these rows, some perhaps twice; with `sentences`, these of the present ones only.
    fn choose(&mut self, rows: &[usize], sentences: Option<&[usize]>);
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamSettings {
    /// How many hypotheses of a sentence are followed; 1 is greedy.
    pub beam: usize,
    /// Above zero longer ones are favoured; 0 compares plain sums.
    pub length_penalty: f64,
    pub start: u32,
    pub end: u32,
    /// Never said.
    pub banned: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// Without start and end.
    pub tokens: Vec<u32>,
    pub score: f64,
}

struct Open {
    tokens: Vec<u32>,
    sum: f64,
    /// Its row in [`Continue`].
    row: usize,
}

struct Sentence {
    index: usize,
    /// The most tokens it may have, the end included.
    limit: usize,
    open: Vec<Open>,
    finished: Vec<Hypothesis>,
    is_done: bool,
}

/// For each sentence its finished hypotheses, at most `beam`, best first. `limits` says how many tokens each may have at most,
/// the end included and at least one; a hypothesis that reaches its limit is finished as it is.
pub fn search(model: &mut impl Continue, limits: &[usize], settings: &BeamSettings) -> Vec<Vec<Hypothesis>> {
    let beam = settings.beam.max(1);
    let mut results = vec![Vec::new(); limits.len()];
    let begin = |(index, &limit): (usize, &usize)| {
        // All rows alike, of which only the first counts: with the others the search would find everything `beam` times.
        let open = (0..beam).map(|slot| Open {
            tokens: Vec::new(),
            sum: if slot == 0 { 0.0 } else { f64::NEG_INFINITY },
            row: index * beam + slot,
        });
        Sentence { index, limit, open: open.collect(), finished: Vec::new(), is_done: false }
    };
    let mut sentences: Vec<Sentence> = limits.iter().enumerate().map(begin).collect();
    while !sentences.is_empty() {
        let last = |open: &Open| open.tokens.last().copied().unwrap_or(settings.start);
        let tokens: Vec<u32> = sentences.iter().flat_map(|sentence| sentence.open.iter().map(last)).collect();
        let continuations = model.step(&tokens, 2 * beam + usize::from(settings.banned.is_some()));
        for (at, sentence) in sentences.iter_mut().enumerate() {
            sentence.advance(&continuations[at * beam..][..beam], settings);
        }
        let kept: Vec<usize> = (0..sentences.len()).filter(|&at| !sentences[at].is_done).collect();
        let are_all = kept.len() == sentences.len();
        for done in sentences.extract_if(.., |sentence| sentence.is_done) {
            results[done.index] = done.finished;
        }
        let mut rows = Vec::with_capacity(kept.len() * beam);
        for open in sentences.iter_mut().flat_map(|sentence| &mut sentence.open) {
            rows.push(std::mem::replace(&mut open.row, rows.len()));
        }
        let is_same = are_all && rows.iter().copied().eq(0..rows.len());
        if !is_same && !sentences.is_empty() {
            model.choose(&rows, (!are_all).then_some(&kept));
        }
    }
    results
}

impl Sentence {
    fn advance(&mut self, continuations: &[Vec<(u32, f32)>], settings: &BeamSettings) {
        let beam = self.open.len();
        let mut candidates: Vec<(f64, usize, u32)> = Vec::new();
        for (from, (open, best)) in self.open.iter().zip(continuations).enumerate() {
            if open.sum == f64::NEG_INFINITY {
                continue;
            }
            let allowed = best.iter().filter(|(token, _)| Some(*token) != settings.banned);
            candidates.extend(allowed.map(|&(token, score)| (open.sum + f64::from(score), from, token)));
        }
        // Ties fall to the earlier hypothesis and the smaller token.
        candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        candidates.truncate(2 * beam);
        let length = self.open[0].tokens.len() + 1;
        let penalised = |sum: f64| sum / (length as f64).powf(settings.length_penalty);
        let is_last = length >= self.limit;
        let mut open = Vec::with_capacity(beam);
        for (rank, &(sum, from, token)) in candidates.iter().enumerate() {
            let ends = token == settings.end;
            let mut tokens = self.open[from].tokens.clone();
            if !ends {
                tokens.push(token);
            }
            if ends || is_last {
                if rank < beam {
                    self.finished.push(Hypothesis { tokens, score: penalised(sum) });
                }
            } else if open.len() < beam {
                open.push(Open { tokens, sum, row: self.open[from].row });
            }
        }
        self.finished.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.finished.truncate(beam);
        let worst = self.finished.get(beam - 1).map(|hypothesis| hypothesis.score);
        let best_open = open.first().map(|open| penalised(open.sum));
        self.is_done = match (best_open, worst) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(open), Some(worst)) => beam == 1 || open <= worst,
        };
        // Where there are fewer continuations than slots (a vocabulary of few words) the rest stay empty.
        if let Some(row) = open.first().map(|open| open.row) {
            open.resize_with(beam, || Open { tokens: vec![settings.end; length], sum: f64::NEG_INFINITY, row });
        }
        self.open = open;
    }
}

#[cfg(test)]
mod tests {
    use hetseq_random::Key;

    use super::*;

    const WORDS: u32 = 4;
    const END: u32 = 0;

    /// Log-probabilities that depend on all that was said.
    struct Toy {
        seed: u64,
        /// What each row has read, and of which sentence it is.
        rows: Vec<(u64, Vec<u32>)>,
    }

    fn continuations(seed: u64, sentence: u64, said: &[u32]) -> Vec<(u32, f32)> {
        let key = said.iter().fold(Key::root(seed).index(sentence), |key, &token| key.index(u64::from(token)));
        let weights: Vec<f64> = (0..WORDS).map(|word| f64::from(key.between(word, 0.02, 1.0))).collect();
        let total: f64 = weights.iter().sum();
        let mut scored: Vec<(u32, f32)> =
            (0..).zip(weights.iter().map(|weight| (weight / total).ln() as f32)).collect();
        scored.sort_by(|a, b| b.1.total_cmp(&a.1));
        scored
    }

    impl Toy {
        fn new(seed: u64, sentences: u64, beam: usize) -> Self {
            Toy { seed, rows: (0..sentences).flat_map(|sentence| vec![(sentence, Vec::new()); beam]).collect() }
        }
    }

    impl Continue for Toy {
        fn step(&mut self, tokens: &[u32], count: usize) -> Vec<Vec<(u32, f32)>> {
            assert_eq!(tokens.len(), self.rows.len());
            for ((_, said), &token) in self.rows.iter_mut().zip(tokens) {
                said.push(token);
            }
            // The start is no part of what was said.
            let best = |(sentence, said): &(u64, Vec<u32>)| continuations(self.seed, *sentence, &said[1..]);
            self.rows.iter().map(best).map(|best| best.into_iter().take(count).collect()).collect()
        }

        fn choose(&mut self, rows: &[usize], _: Option<&[usize]>) {
            self.rows = rows.iter().map(|&row| self.rows[row].clone()).collect();
        }
    }

    /// The best of all there is.
    fn best_of_all(seed: u64, sentence: u64, limit: usize, penalty: f64) -> Hypothesis {
        let mut best: Option<Hypothesis> = None;
        let mut open = vec![(Vec::new(), 0.0)];
        while let Some((said, sum)) = open.pop() {
            for (token, score) in continuations(seed, sentence, &said) {
                let (mut tokens, sum, length) = (said.clone(), sum + f64::from(score), said.len() + 1);
                if token != END {
                    tokens.push(token);
                }
                if token != END && length < limit {
                    open.push((tokens, sum));
                    continue;
                }
                let score = sum / (length as f64).powf(penalty);
                if best.as_ref().is_none_or(|best| score > best.score) {
                    best = Some(Hypothesis { tokens, score });
                }
            }
        }
        best.unwrap()
    }

    fn settings(beam: usize, length_penalty: f64) -> BeamSettings {
        BeamSettings { beam, length_penalty, start: 9, end: END, banned: None }
    }

    #[test]
    fn a_beam_that_holds_everything_finds_the_best_there_is() {
        // With plain sums nothing that is worse now can become better.
        for seed in 0..20 {
            let (limits, beam) = ([1, 4, 2, 3], 64);
            let found = search(&mut Toy::new(seed, 4, beam), &limits, &settings(beam, 0.0));
            for (sentence, (found, &limit)) in found.iter().zip(&limits).enumerate() {
                let best = best_of_all(seed, sentence as u64, limit, 0.0);
                assert_eq!(found[0].tokens, best.tokens, "seed {seed}, sentence {sentence}");
                assert!((found[0].score - best.score).abs() < 1e-6);
                assert!(found.is_sorted_by(|a, b| a.score >= b.score));
            }
        }
    }

    #[test]
    fn sentences_do_not_see_each_other_and_wider_beams_do_not_lose() {
        for seed in 0..20 {
            let mut before = [f64::NEG_INFINITY; 5];
            for beam in [1, 2, 3, 8, 64] {
                let together = search(&mut Toy::new(seed, 5, beam), &[6; 5], &settings(beam, 0.0));
                for (sentence, found) in together.iter().enumerate() {
                    assert!(!found.is_empty() && found.len() <= beam);
                    let mut alone = Toy::new(seed, 5, beam);
                    alone.rows = vec![(sentence as u64, Vec::new()); beam];
                    assert_eq!(&search(&mut alone, &[6], &settings(beam, 0.0))[0], found);
                    // Not so from each width to the next, but from greedy to everything.
                    if beam == 1 || beam == 64 {
                        assert!(found[0].score >= before[sentence] - 1e-9);
                        before[sentence] = found[0].score;
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_banned_is_never_said() {
        for beam in [1, 3] {
            let settings = BeamSettings { banned: Some(2), ..settings(beam, 1.0) };
            let found = search(&mut Toy::new(5, 6, beam), &[8; 6], &settings);
            assert!(found.iter().flatten().all(|hypothesis| !hypothesis.tokens.contains(&2)));
        }
    }
}
