//! Beam search over any [`BeamModel`]. Pure: it only selects hypotheses; the model computes scores.
//!
//! The score of a finished hypothesis is its sum of log-probabilities divided by length^penalty;
//! the end counts as a token. The rules are those of transformers' `generate` with
//! `early_stopping = False`, so that both find the same result. Of the `2 beam` best continuations,
//! those that end count if they are among the first `beam`. A sentence is done when it has `beam`
//! finished hypotheses and no open one has a better score at present. With a beam of one it is done
//! at the first end: greedy search.

/// A model that scores continuations. Rows are hypotheses. Those of a sentence are adjacent, and
/// each sentence has the same number of them.
pub trait BeamModel {
    /// Appends a token to each row. Returns the best `count` continuations of each row as
    /// (token, log-probability), best first.
    fn step(&mut self, tokens: &[u32], count: usize) -> Vec<Vec<(u32, f32)>>;
    /// Replaces the rows by these rows, which may repeat. With `sentences`, keeps only these of the
    /// current sentences.
    fn reorder(&mut self, rows: &[usize], sentences: Option<&[usize]>);
}

/// Settings of [`search`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamSettings {
    /// Beam width: number of hypotheses per sentence. 1 is greedy search.
    pub beam: usize,
    /// Above zero, longer hypotheses are favoured. 0 compares plain sums.
    pub length_penalty: f64,
    pub start: u32,
    pub end: u32,
    /// A token that is never generated.
    pub banned: Option<u32>,
}

/// A finished hypothesis.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// Without start and end.
    pub tokens: Vec<u32>,
    pub score: f64,
}

/// A hypothesis that has not ended.
struct Open {
    tokens: Vec<u32>,
    sum: f64,
    /// Its row in [`BeamModel`].
    row: usize,
}

struct Sentence {
    index: usize,
    /// Maximum tokens, including the end.
    limit: usize,
    open: Vec<Open>,
    finished: Vec<Hypothesis>,
    is_done: bool,
}

/// Returns the finished hypotheses of each sentence, at most `beam`, best first.
///
/// `limits` holds the maximum tokens of each sentence, including the end; each is at least one. A
/// hypothesis that reaches its limit is finished as it is.
pub fn search(model: &mut impl BeamModel, limits: &[usize], settings: &BeamSettings) -> Vec<Vec<Hypothesis>> {
    let beam = settings.beam.max(1);
    let mut results = vec![Vec::new(); limits.len()];
    let begin = |(index, &limit): (usize, &usize)| {
        // All rows are equal, so only the first counts. Otherwise every result would appear `beam`
        // times.
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
            model.reorder(&rows, (!are_all).then_some(&kept));
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
        // Ties: the earlier hypothesis, then the smaller token.
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
        // With fewer continuations than slots (a very small vocabulary), the other slots stay
        // empty.
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

    /// A model whose log-probabilities depend on all previous tokens.
    struct ToyModel {
        seed: u64,
        /// Sentence and tokens of each row.
        rows: Vec<(u64, Vec<u32>)>,
    }

    fn continuations(seed: u64, sentence: u64, prefix: &[u32]) -> Vec<(u32, f32)> {
        let key = prefix.iter().fold(Key::root(seed).index(sentence), |key, &token| key.index(u64::from(token)));
        let weights: Vec<f64> = (0..WORDS).map(|word| f64::from(key.between(word, 0.02, 1.0))).collect();
        let total: f64 = weights.iter().sum();
        let mut scored: Vec<(u32, f32)> =
            (0..).zip(weights.iter().map(|weight| (weight / total).ln() as f32)).collect();
        scored.sort_by(|a, b| b.1.total_cmp(&a.1));
        scored
    }

    impl ToyModel {
        fn new(seed: u64, sentences: u64, beam: usize) -> Self {
            ToyModel { seed, rows: (0..sentences).flat_map(|sentence| vec![(sentence, Vec::new()); beam]).collect() }
        }
    }

    impl BeamModel for ToyModel {
        fn step(&mut self, tokens: &[u32], count: usize) -> Vec<Vec<(u32, f32)>> {
            assert_eq!(tokens.len(), self.rows.len());
            for ((_, prefix), &token) in self.rows.iter_mut().zip(tokens) {
                prefix.push(token);
            }
            // Without the start token.
            let best = |(sentence, prefix): &(u64, Vec<u32>)| continuations(self.seed, *sentence, &prefix[1..]);
            self.rows.iter().map(best).map(|best| best.into_iter().take(count).collect()).collect()
        }

        fn reorder(&mut self, rows: &[usize], _: Option<&[usize]>) {
            self.rows = rows.iter().map(|&row| self.rows[row].clone()).collect();
        }
    }

    /// The best of all possible hypotheses.
    fn best_of_all(seed: u64, sentence: u64, limit: usize, penalty: f64) -> Hypothesis {
        let mut best: Option<Hypothesis> = None;
        let mut open = vec![(Vec::new(), 0.0)];
        while let Some((prefix, sum)) = open.pop() {
            for (token, score) in continuations(seed, sentence, &prefix) {
                let (mut tokens, sum, length) = (prefix.clone(), sum + f64::from(score), prefix.len() + 1);
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
    fn an_exhaustive_beam_finds_the_best() {
        // With plain sums, a hypothesis that is worse now cannot become better.
        for seed in 0..20 {
            let (limits, beam) = ([1, 4, 2, 3], 64);
            let found = search(&mut ToyModel::new(seed, 4, beam), &limits, &settings(beam, 0.0));
            for (sentence, (found, &limit)) in found.iter().zip(&limits).enumerate() {
                let best = best_of_all(seed, sentence as u64, limit, 0.0);
                assert_eq!(found[0].tokens, best.tokens, "seed {seed}, sentence {sentence}");
                assert!((found[0].score - best.score).abs() < 1e-6);
                assert!(found.is_sorted_by(|a, b| a.score >= b.score));
            }
        }
    }

    #[test]
    fn sentences_are_independent_and_an_exhaustive_beam_is_no_worse_than_greedy() {
        for seed in 0..20 {
            let mut before = [f64::NEG_INFINITY; 5];
            for beam in [1, 2, 3, 8, 64] {
                let together = search(&mut ToyModel::new(seed, 5, beam), &[6; 5], &settings(beam, 0.0));
                for (sentence, found) in together.iter().enumerate() {
                    assert!(!found.is_empty() && found.len() <= beam);
                    let mut alone = ToyModel::new(seed, 5, beam);
                    alone.rows = vec![(sentence as u64, Vec::new()); beam];
                    assert_eq!(&search(&mut alone, &[6], &settings(beam, 0.0))[0], found);
                    // Holds from greedy to exhaustive search, not from each width to the next.
                    if beam == 1 || beam == 64 {
                        assert!(found[0].score >= before[sentence] - 1e-9);
                        before[sentence] = found[0].score;
                    }
                }
            }
        }
    }

    #[test]
    fn a_banned_token_is_never_generated() {
        for beam in [1, 3] {
            let settings = BeamSettings { banned: Some(2), ..settings(beam, 1.0) };
            let found = search(&mut ToyModel::new(5, 6, beam), &[8; 6], &settings);
            assert!(found.iter().flatten().all(|hypothesis| !hypothesis.tokens.contains(&2)));
        }
    }
}
