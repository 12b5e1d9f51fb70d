//! `hetseq score`: scores translations against references. `hetseq_metrics` computes the scores;
//! this file reads the files and prints like sacrebleu.

mod args;

use std::path::Path;
use std::process::ExitCode;

use hetseq_data::source::text::read_lines;
use hetseq_metrics::{Corpus, thousands};
use serde::Serialize;

pub(crate) use args::ScoreArgs;

use crate::args::UsageError;
use crate::output::{eprint_line, print_line};
use args::{MetricArg, TokenizeArg};

/// With at least this many lines that end in a separate full stop, the text looks tokenized.
const SUSPICIOUS_LINES: usize = 100;

/// A score as `--json` prints it. The first four fields have sacrebleu's names.
#[derive(Debug, Serialize)]
struct Score {
    name: &'static str,
    score: f64,
    signature: String,
    /// The text after the score.
    #[serde(rename = "verbose_score", skip_serializing_if = "String::is_empty")]
    details: String,
    lines: usize,
    #[serde(flatten)]
    bleu: Option<BleuParts>,
}

#[derive(Debug, Serialize)]
struct BleuParts {
    precisions: [f64; 4],
    bp: f64,
    ratio: f64,
    hyp_len: u64,
    ref_len: u64,
}

pub(crate) fn score(args: &ScoreArgs) -> anyhow::Result<ExitCode> {
    let files = || args.references.iter().chain([&args.hypotheses]);
    if files().filter(|path| *path == Path::new("-")).count() > 1 {
        return Err(UsageError("only one of the files can be standard input (`-`)".to_owned()).into());
    }
    let hypotheses = read_lines(&args.hypotheses)?;
    let references = args.references.iter().map(|path| read_lines(path)).collect::<Result<Vec<_>, _>>()?;
    let lines = hypotheses.len();
    let looks_tokenized = hypotheses.iter().filter(|line| line.ends_with(" .")).count() >= SUSPICIOUS_LINES;
    let mut corpus = Corpus::new(hypotheses, references).map_err(|unequal| {
        UsageError(format!(
            "{} has {} lines, but {} has {}: line n of both must belong together",
            name(&args.hypotheses),
            thousands(unequal.hypotheses as u64),
            name(&args.references[unequal.set]),
            thousands(unequal.lines as u64),
        ))
    })?;
    if lines == 0 {
        return Err(UsageError(format!("{} has no lines: nothing to score", name(&args.hypotheses))).into());
    }
    if looks_tokenized && args.metrics.contains(&MetricArg::Bleu) && args.tokenize != TokenizeArg::None {
        eprint_line(&format!(
            "warning: many lines of {} end in a separate full stop, so the text seems to be tokenized. Detokenize it before \
             scoring; otherwise the score is not comparable with others",
            name(&args.hypotheses)
        ));
    }
    if args.lowercase {
        corpus.lowercase();
    }
    let mut scores: Vec<Score> = Vec::new();
    for &metric in &args.metrics {
        let score = compute(&corpus, metric, args, lines);
        if scores.iter().all(|other| other.name != score.name) {
            scores.push(score);
        }
    }
    match args.json {
        true => {
            for score in &scores {
                print_line(&serde_json::to_string(score)?);
            }
        }
        false => as_text(&scores).iter().for_each(|line| print_line(line)),
    }
    Ok(ExitCode::SUCCESS)
}

/// The name of a file in messages.
fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

fn compute(corpus: &Corpus, metric: MetricArg, args: &ScoreArgs, lines: usize) -> Score {
    if let Some(kind) = metric.chrf() {
        let (score, signature) = (corpus.chrf(kind).score(), corpus.chrf_signature(kind));
        return Score { name: kind.name(), score, signature, details: String::new(), lines, bleu: None };
    }
    let (tokenizer, smoothing) = (args.tokenize.into(), args.smooth.into());
    let bleu = corpus.bleu(tokenizer).bleu(smoothing);
    let parts = BleuParts {
        precisions: bleu.precisions,
        bp: bleu.brevity_penalty,
        ratio: bleu.ratio,
        hyp_len: bleu.hypothesis,
        ref_len: bleu.reference,
    };
    let (details, signature) = (bleu.details(), corpus.bleu_signature(tokenizer, smoothing));
    Score { name: "BLEU", score: bleu.score, signature, details, lines, bleu: Some(parts) }
}

/// One line per score, with the scores in one column.
fn as_text(scores: &[Score]) -> Vec<String> {
    let left: Vec<String> = scores.iter().map(|score| format!("{}|{}", score.name, score.signature)).collect();
    let width = left.iter().map(String::len).max().unwrap_or(0);
    let line = |(left, score): (&String, &Score)| format!("{left:>width$} = {:.1} {}", score.score, score.details);
    left.iter().zip(scores).map(|pair| line(pair).trim_end().to_owned()).collect()
}
