//! `hetseq score`: translations against references. What scores are is in `hetseq_metrics`; here files become lines, and
//! scores are printed as sacrebleu prints them.

mod args;

use std::path::Path;
use std::process::ExitCode;

use hetseq_data::source::text::read_lines;
use hetseq_metrics::{Corpus, thousands};
use serde::Serialize;

pub(crate) use args::ScoreArgs;

use crate::args::UsageError;
use crate::output::{print_line, say};
use args::{MetricArg, TokenizeArg};

/// So many lines that end in a full stop by itself were taken apart before.
const SUSPICIOUS_LINES: usize = 100;

/// As `--json` prints it; the first four as sacrebleu calls them.
#[derive(Debug, Serialize)]
struct Score {
    name: &'static str,
    score: f64,
    signature: String,
    /// What follows the score.
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
        return Err(UsageError("standard input (`-`) can be one of the files only".to_owned()).into());
    }
    let hypotheses = read_lines(&args.hypotheses)?;
    let references = args.references.iter().map(|path| read_lines(path)).collect::<Result<Vec<_>, _>>()?;
    let lines = hypotheses.len();
    let looks_tokenized = hypotheses.iter().filter(|line| line.ends_with(" .")).count() >= SUSPICIOUS_LINES;
    let mut corpus = Corpus::new(hypotheses, references).map_err(|unequal| {
        UsageError(format!(
            "{} has {} lines, but {} has {}; each line must stand beside the one that it translates",
            name(&args.hypotheses),
            thousands(unequal.hypotheses as u64),
            name(&args.references[unequal.set]),
            thousands(unequal.lines as u64),
        ))
    })?;
    if lines == 0 {
        return Err(UsageError(format!("{} has no lines, so there is nothing to score", name(&args.hypotheses))).into());
    }
    if looks_tokenized && args.metrics.contains(&MetricArg::Bleu) && args.tokenize != TokenizeArg::None {
        say(&format!(
            "note: many lines of {} end in a full stop by itself, so they seem to be taken apart into tokens. Put them \
             together again before scoring, or scores cannot be compared with those of others",
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

/// As messages call a file.
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

/// One line each, with the scores below each other.
fn as_text(scores: &[Score]) -> Vec<String> {
    let left: Vec<String> = scores.iter().map(|score| format!("{}|{}", score.name, score.signature)).collect();
    let width = left.iter().map(String::len).max().unwrap_or(0);
    let line = |(left, score): (&String, &Score)| format!("{left:>width$} = {:.1} {}", score.score, score.details);
    left.iter().zip(scores).map(|pair| line(pair).trim_end().to_owned()).collect()
}
