//! `hetseq generate`: lines to the translator and back, with progress, a word about what is unusual, and the speed at the end.

mod args;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fs_err as fs;
use hetseq_data::source::text::Lines;
use hetseq_metrics::thousands;
use hetseq_train::TrainError;
use hetseq_train::generate::{GenerateOptions, Generator, Translation};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(crate) use args::GenerateArgs;

use crate::output::say;

/// What [`Lines`] takes for standard input.
const STANDARD_INPUT: &str = "-";
/// So many lines are read, sorted by length and translated at a time.
const WINDOW: usize = 20_000;
/// Cut or empty lines that are named one by one; of the others there is a count at the end.
const NAMED: u64 = 10;

pub(crate) fn generate(args: &GenerateArgs) -> anyhow::Result<ExitCode> {
    let devices = hetseq_train::devices_named(&args.devices)
        .map_err(|reason| TrainError::Config(format!("--devices: {reason}")))?;
    let options = GenerateOptions {
        beam: args.beam.into(),
        length_penalty: args.length_penalty,
        batch_tokens: args.batch_tokens.max(1),
        most_per_token: args.max_ratio,
        most_more: args.max_more,
        ..GenerateOptions::new(devices)
    };
    if args.max_ratio.is_nan() || args.max_ratio < 0.0 {
        return Err(TrainError::Config(format!("--max-ratio {} must be a number of at least 0", args.max_ratio)).into());
    }
    if let Some(n_best) = args.n_best.filter(|&n_best| n_best > args.beam) {
        let reason = format!("--n-best {n_best} needs a beam at least as wide: --beam {n_best}");
        return Err(TrainError::Config(reason).into());
    }
    let mut generator = Generator::open(&args.model, options)?;
    say(&format!("translating with {}", generator.checkpoint().display()));
    if args.interactive {
        return interactive(&mut generator, args);
    }
    let input = Lines::open(args.input.as_deref().unwrap_or(Path::new(STANDARD_INPUT)))?;
    match &args.output {
        None => {
            let mut out = std::io::BufWriter::new(std::io::stdout().lock());
            run(&mut generator, args, input, &mut out)
        }
        Some(path) => {
            let mut name = path.file_name().unwrap_or_default().to_owned();
            name.push(".tmp");
            let temporary = path.with_file_name(name);
            let write = || -> anyhow::Result<ExitCode> {
                let mut out = std::io::BufWriter::new(fs::File::create(&temporary)?);
                let code = run(&mut generator, args, input, &mut out)?;
                out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
                if code == ExitCode::SUCCESS {
                    fs::rename(&temporary, path)?;
                }
                Ok(code)
            };
            let done = write();
            // Of what was not finished nothing stays.
            _ = fs::remove_file(&temporary);
            done
        }
    }
}

/// Everything there is to read.
fn run(
    generator: &mut Generator,
    args: &GenerateArgs,
    mut input: Lines,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stopped.clone())?;
    }
    let (progress, name) = (progress()?, input.name());
    let started = Instant::now();
    let (mut lines, mut remarks) = (0, Remarks::default());
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
            say(&format!("stopped after {lines} lines of {name}"));
            return Ok(crate::stopped());
        }
        for translation in &translations {
            lines += 1;
            tokens += translation.tokens;
            remarks.take(&name, lines, translation, &progress);
            match write_line(out, args.n_best, lines, translation) {
                Err(error) if is_unread(&error) => return Ok(ExitCode::SUCCESS),
                written => written?,
            }
        }
        match out.flush() {
            Err(error) if is_unread(&error) => return Ok(ExitCode::SUCCESS),
            flushed => flushed?,
        }
    }
    progress.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    let speed = tokens as f64 / seconds.max(1e-9);
    say(&format!(
        "{} lines, {} tokens in {seconds:.1} s ({speed:.0} tokens/s){}",
        thousands(lines),
        thousands(tokens as u64),
        remarks.in_words()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Whoever read it has had enough, such as `head`.
fn is_unread(error: &std::io::Error) -> bool {
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

/// What was unusual about lines.
#[derive(Default)]
struct Remarks {
    empty: u64,
    cut: u64,
}

impl Remarks {
    fn take(&mut self, name: &str, line: u64, translation: &Translation, progress: &ProgressBar) {
        let named = self.empty + self.cut < NAMED;
        if let Some(cut) = translation.was_cut {
            self.cut += 1;
            if named {
                let words = format!("{} tokens were cut to the model's {}", cut.tokens, cut.kept);
                progress.suspend(|| say(&format!("line {line} of {name}: {words}")));
            }
        } else if translation.had_no_words {
            self.empty += 1;
            if named {
                progress
                    .suspend(|| say(&format!("line {line} of {name} has no words, and neither has its translation")));
            }
        }
    }

    fn in_words(&self) -> String {
        let part = |count: u64, what: &str| if count > 0 { format!(", {count} {what}") } else { String::new() };
        format!("{}{}", part(self.empty, "without words"), part(self.cut, "cut short"))
    }
}

fn interactive(generator: &mut Generator, args: &GenerateArgs) -> anyhow::Result<ExitCode> {
    let is_typed = std::io::stdin().is_terminal();
    if is_typed {
        say("Type a sentence; Ctrl-D ends.");
    }
    let prompt = || _ = is_typed.then(|| write!(std::io::stderr(), "> "));
    prompt();
    for (line, text) in (1..).zip(Lines::open(Path::new(STANDARD_INPUT))?) {
        let text = text?;
        let translation = generator.translate(&[text], &|_| true)?.pop().unwrap_or_default();
        if let Some(cut) = translation.was_cut {
            say(&format!("its {} tokens were cut to the model's {}", cut.tokens, cut.kept));
        }
        let mut out = std::io::stdout().lock();
        if write_line(&mut out, args.n_best, line, &translation).and_then(|()| out.flush()).is_err() {
            break;
        }
        prompt();
    }
    Ok(ExitCode::SUCCESS)
}

/// Seen only in a terminal.
fn progress() -> anyhow::Result<ProgressBar> {
    let style = ProgressStyle::with_template("{spinner} {human_pos} lines, {per_sec}, {elapsed}")?;
    let progress = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style);
    Ok(progress)
}
