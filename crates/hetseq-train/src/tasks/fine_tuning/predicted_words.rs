//! Writes the words of a CoNLL file with their predictions. Used by the tasks that label words.

use std::io;

use hetseq_data::finetune::{ConllFile, TokenSamples};

use crate::inference::PredictionFormat;
use crate::task::Answer;

/// The predictions for each word of a file.
pub(super) struct PredictedWords<'a> {
    file: &'a ConllFile,
    /// For each word the texts that were predicted for it, with scores.
    of_word: Vec<&'a [(String, f64)]>,
}

impl<'a> PredictedWords<'a> {
    /// An answer has `per_word` texts for each labelled word of its sample.
    pub(super) fn new(
        file: &'a ConllFile,
        samples: &TokenSamples,
        answers: &'a [Answer],
        per_word: usize,
    ) -> PredictedWords<'a> {
        let mut of_word: Vec<&[(String, f64)]> = vec![&[]; file.words()];
        for (sample, answer) in (0..).zip(answers) {
            let Some(window) = samples.window(sample) else { continue };
            let start = file.sentence(window.sentence).start;
            for (word, predicted) in window.labelled.zip(answer.texts.chunks_exact(per_word)) {
                of_word[start + word] = predicted;
            }
        }
        PredictedWords { file, of_word }
    }

    /// As text: words, their labels if the file has any, and the predictions, which is what the
    /// `conlleval` script reads. `names` are the keys of each prediction and its score in JSON.
    pub(super) fn write(
        &self,
        format: PredictionFormat,
        names: &[[&str; 2]],
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        for sentence in 0..self.file.sentences() {
            let words = self.file.sentence(sentence);
            match format {
                PredictionFormat::Text => {
                    for word in words {
                        let label = self.file.label(word).into_iter();
                        let predicted = self.of_word[word].iter().map(|(text, _)| text.as_str());
                        let columns: Vec<&str> =
                            [self.file.word(word)].into_iter().chain(label).chain(predicted).collect();
                        writeln!(out, "{}", columns.join("\t"))?;
                    }
                    writeln!(out)?;
                }
                PredictionFormat::JsonLines => {
                    let mut line = serde_json::Map::new();
                    line.insert("words".to_owned(), words.clone().map(|word| self.file.word(word)).collect());
                    for (at, [text, score]) in names.iter().enumerate() {
                        let predicted = || words.clone().filter_map(|word| self.of_word[word].get(at));
                        line.insert((*text).to_owned(), predicted().map(|(text, _)| text.as_str()).collect());
                        line.insert((*score).to_owned(), predicted().map(|(_, score)| *score).collect());
                    }
                    writeln!(out, "{}", serde_json::Value::Object(line))?;
                }
            }
        }
        Ok(())
    }
}
