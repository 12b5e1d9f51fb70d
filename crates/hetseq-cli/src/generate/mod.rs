//! `hetseq generate`: reads lines, translates them and writes them, with progress, notes about
//! unusual lines and a summary.

mod args;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;

use hetseq_data::source::text::Lines;
use hetseq_metrics::thousands;
use hetseq_train::inference::{GenerateOptions, Generator, Translation};
use hetseq_train::{Tasks, TrainError};
use indicatif::ProgressBar;

pub(crate) use args::GenerateArgs;

use crate::inference_output::{progress, stop_flag, write_to};
use crate::output::eprint_line;

/// The path that [`Lines`] reads as standard input.
const STANDARD_INPUT: &str = "-";
/// Lines that are read, sorted by length and translated at a time.
const WINDOW: usize = 20_000;
/// Cut or empty lines that are reported one by one; the summary counts the others.
const MAX_NOTES: u64 = 10;

pub(crate) fn generate(tasks: &Tasks, args: &GenerateArgs) -> anyhow::Result<ExitCode> {
    let devices = hetseq_train::devices_named(&args.devices)
        .map_err(|reason| TrainError::Config(format!("--devices: {reason}")))?;
    let options = GenerateOptions {
        beam: args.beam.into(),
        length_penalty: args.length_penalty,
        batch_tokens: args.batch_tokens.max(1),
        max_ratio: args.max_ratio,
        max_more: args.max_more,
        ..GenerateOptions::new(devices)
    };
    if args.max_ratio.is_nan() || args.max_ratio < 0.0 {
        return Err(TrainError::Config(format!("--max-ratio {} must be a number of at least 0", args.max_ratio)).into());
    }
    if let Some(n_best) = args.n_best.filter(|&n_best| n_best > args.beam) {
        let reason = format!("--n-best {n_best} needs a beam at least as wide: --beam {n_best}");
        return Err(TrainError::Config(reason).into());
    }
    let mut generator = tasks.generator(&args.model, options)?;
    eprint_line(&format!("translating with {}", generator.checkpoint().display()));
    if args.interactive {
        return interactive(&mut generator, args);
    }
    let input = Lines::open(args.input.as_deref().unwrap_or(Path::new(STANDARD_INPUT)))?;
    write_to(args.out.as_deref(), |out| run(&mut generator, args, input, out))
}

/// Translates the whole input.
fn run(
    generator: &mut Generator,
    args: &GenerateArgs,
    mut input: Lines,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let stopped = stop_flag()?;
    let (progress, name) = (progress(None, "lines")?, input.name());
    let started = Instant::now();
    let (mut lines, mut notes) = (0, LineNotes::default());
    let mut tokens = 0;
    loop {
        let window: Vec<String> = input.by_ref().take(WINDOW).collect::<Result<_, _>>()?;
        if window.is_empty() {
            break;
        }
        let done = |count: usize| {
            progress.inc(count as u64);
            !stopped.load(Ordering::Relaxed)
        };
        let translations = generator.translate(&window, &done)?;
        if stopped.load(Ordering::Relaxed) {
            progress.finish_and_clear();
            eprint_line(&format!("stopped after {lines} lines of {name}"));
            return Ok(crate::stopped());
        }
        for translation in &translations {
            lines += 1;
            tokens += translation.tokens;
            notes.add(&name, lines, translation, &progress);
            match write_line(out, args.n_best, lines, translation) {
                Err(error) if is_closed_pipe(&error) => return Ok(ExitCode::SUCCESS),
                written => written?,
            }
        }
        match out.flush() {
            Err(error) if is_closed_pipe(&error) => return Ok(ExitCode::SUCCESS),
            flushed => flushed?,
        }
    }
    progress.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    let speed = tokens as f64 / seconds.max(1e-9);
    eprint_line(&format!(
        "{} lines, {} tokens in {seconds:.1} s ({speed:.0} tokens/s){}",
        thousands(lines),
        thousands(tokens as u64),
        notes.summary()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Whether the reader has closed the pipe, as `head` does when it has enough.
fn is_closed_pipe(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}

fn write_line(out: &mut dyn Write, n_best: Option<u16>, line: u64, translation: &Translation) -> std::io::Result<()> {
    match n_best {
        None => writeln!(out, "{}", translation.hypotheses.first().map_or("", |(text, _)| text)),
        Some(count) => {
            for (text, score) in translation.hypotheses.iter().take(count.into()) {
                writeln!(out, "{line}\t{score:.4}\t{text}")?;
            }
            Ok(())
        }
    }
}

/// Counts and reports lines that were empty or cut.
#[derive(Default)]
struct LineNotes {
    empty: u64,
    cut: u64,
}

impl LineNotes {
    fn add(&mut self, name: &str, line: u64, translation: &Translation, progress: &ProgressBar) {
        let is_reported = self.empty + self.cut < MAX_NOTES;
        if let Some(cut) = translation.was_cut {
            self.cut += 1;
            if is_reported {
                let note = format!("{} tokens were cut to the model's {}", cut.tokens, cut.kept);
                progress.suspend(|| eprint_line(&format!("line {line} of {name}: {note}")));
            }
        } else if translation.had_no_words {
            self.empty += 1;
            if is_reported {
                progress
                    .suspend(|| eprint_line(&format!("line {line} of {name} has no words; its translation is empty")));
            }
        }
    }

    fn summary(&self) -> String {
        let part = |count: u64, what: &str| if count > 0 { format!(", {count} {what}") } else { String::new() };
        format!("{}{}", part(self.empty, "empty"), part(self.cut, "cut"))
    }
}

fn interactive(generator: &mut Generator, args: &GenerateArgs) -> anyhow::Result<ExitCode> {
    let is_terminal = std::io::stdin().is_terminal();
    if is_terminal {
        eprint_line("Enter a sentence per line; Ctrl-D ends.");
    }
    let prompt = || _ = is_terminal.then(|| write!(std::io::stderr(), "> "));
    prompt();
    for (line, text) in (1..).zip(Lines::open(Path::new(STANDARD_INPUT))?) {
        let text = text?;
        let translation = generator.translate(&[text], &|_| true)?.pop().unwrap_or_default();
        if let Some(cut) = translation.was_cut {
            eprint_line(&format!("{} tokens were cut to the model's {}", cut.tokens, cut.kept));
        }
        let mut out = std::io::stdout().lock();
        if write_line(&mut out, args.n_best, line, &translation).and_then(|()| out.flush()).is_err() {
            break;
        }
        prompt();
    }
    Ok(ExitCode::SUCCESS)
}
