//! `hetseq selftest`: tests devices against one CPU core and writes a report. `checks` lists what is
//! tested and `compare` holds the tolerances; `tested_device` computes, in a process that
//! `test_process` starts and watches; `markdown` writes the report.

mod args;
mod checks;
mod compare;
mod data;
mod markdown;
mod memory;
mod system;
mod test_process;
mod tested_device;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use hetseq_metrics::duration;
use hetseq_train::{Tasks, devices_named};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use self::checks::{CheckMessage, CheckResult, Subject, SubjectKind, TestStep};
use self::compare::CheckStatus;
use self::markdown::SubjectResults;
use crate::args::UsageError;
use crate::bench::ScratchDir;
use crate::devices::{CpuReport, TestedGpu, gpu_entries, test_gpus};
use crate::output::{eprint_line, print_line};

pub(crate) use args::SelftestArgs;

pub(crate) fn selftest(tasks: &Tasks, args: &SelftestArgs) -> anyhow::Result<ExitCode> {
    if let Some(name) = &args.examine {
        return tested_device::examine(tasks, args, name);
    }
    let started = Instant::now();
    let named = args.devices.as_deref().map(named_entries).transpose()?;
    check_selection(&args.only)?;
    let out = report_path(args)?;
    // Only what is tested: each GPU takes some seconds.
    let needs_gpus = named.as_ref().is_none_or(|names| names.iter().any(|name| !is_cpu(name)));
    let gpus = if needs_gpus { test_gpus() } else { Vec::new() };
    let subjects = subjects(named.as_deref(), &gpus);
    let mut devices = CpuReport::measure()?.entry();
    if needs_gpus {
        devices.extend(gpu_entries(&gpus));
    }
    devices.iter().for_each(|line| print_line(line));
    if args.devices.is_none() && subjects.iter().all(|subject| subject.kind == SubjectKind::Cpu) {
        print_line("\nno GPU found: testing the CPU");
    }
    let scratch = ScratchDir::new("selftest")?;
    eprint_line("generating data");
    data::generate(&scratch.0)?;
    let tested: Vec<SubjectResults> =
        subjects.into_iter().map(|subject| test(args, subject, &scratch.0)).collect::<anyhow::Result<_>>()?;
    let mut rows = system::rows();
    rows.push(("time", duration(started.elapsed().as_secs_f64())));
    fs_err::write(&out, markdown::report(&rows, &devices, &tested))?;
    print_line("");
    tested.iter().for_each(|results| print_line(&results.verdict()));
    print_line(&format!("report: {}", out.display()));
    let has_failed = tested.iter().any(|results| results.status() == CheckStatus::Failed);
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn is_cpu(name: &str) -> bool {
    Subject::new(name).kind == SubjectKind::Cpu
}

/// The entries of `--devices`, checked as far as possible without a driver.
fn named_entries(text: &str) -> Result<Vec<String>, UsageError> {
    let refused = |reason: String| UsageError(format!("--devices: {reason}"));
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    for name in &names {
        if name.starts_with("torch:") || name.starts_with("exec:") {
            return Err(refused(format!(
                "{name} is another program; the self-test is for the devices of this one. To test it, train a small Python \
                 task on it and on torch:cpu (docs/pytorch.md)"
            )));
        }
        if name.contains('@') {
            return Err(refused(format!("{name}: every precision of a device is tested, name it without one")));
        }
        if name != "all" && name != "gpu" {
            devices_named(name).map_err(refused)?;
        }
    }
    Ok(names)
}

/// What to test: by default all real GPUs, else the CPU. Several GPUs are also tested together.
fn subjects(named: Option<&[String]>, gpus: &[TestedGpu]) -> Vec<Subject> {
    // A GPU that cannot be used is tested too, and fails: it would be missed in a training.
    let is_real = |gpu: &&TestedGpu| gpu.report.as_ref().map_or(true, |report| !report.is_software);
    let real: Vec<String> = gpus.iter().filter(is_real).map(|gpu| gpu.name.clone()).collect();
    let mut names: Vec<String> = match named {
        None if real.is_empty() => vec!["cpu".to_owned()],
        None => real,
        Some(named) => {
            let entry = |name: &String| match name.as_str() {
                "all" => real.iter().cloned().chain(["cpu".to_owned()]).collect(),
                "gpu" if real.is_empty() => vec![name.clone()],
                "gpu" => real.clone(),
                _ => vec![name.clone()],
            };
            named.iter().flat_map(entry).collect()
        }
    };
    let mut known = std::collections::HashSet::new();
    names.retain(|name| known.insert(name.clone()));
    let of_gpus: Vec<&str> = names.iter().filter(|name| !is_cpu(name)).map(String::as_str).collect();
    let together = (of_gpus.len() > 1).then(|| of_gpus.join(","));
    names.iter().cloned().chain(together).map(|name| Subject::new(&name)).collect()
}

/// A filter that selects nothing is a typing error.
fn check_selection(only: &[String]) -> Result<(), UsageError> {
    let is_chosen = |step: &TestStep| *step != TestStep::Open && step.is_selected(only);
    if TestStep::all(SubjectKind::Gpu).iter().any(is_chosen) {
        return Ok(());
    }
    let text = only.join(", ");
    let examples = "for example training, f16, gelu, speed, memory; a report lists them";
    Err(UsageError(format!("--only {text}: no check has such a name. Use part of one, {examples}")))
}

/// The file of the report. Fails now if it cannot be written, not after minutes of tests.
fn report_path(args: &SelftestArgs) -> Result<PathBuf, UsageError> {
    let path = args.out.clone().unwrap_or_else(|| PathBuf::from(system::file_name()));
    let is_new = !path.exists();
    let opened = fs_err::OpenOptions::new().append(true).create(true).open(&path);
    opened.map_err(|error| UsageError(format!("--out: {error}")))?;
    if is_new {
        _ = fs_err::remove_file(&path);
    }
    Ok(path)
}

/// Runs all checks of a subject, and prints each result.
fn test(args: &SelftestArgs, subject: Subject, data: &Path) -> anyhow::Result<SubjectResults> {
    print_line(&format!("\n{} against one CPU core", subject.name));
    let steps = TestStep::all(subject.kind);
    let bar = ProgressBar::with_draw_target(Some(steps.len() as u64), ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template("{spinner} {pos}/{len} {msg} ({elapsed})")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let program = std::env::current_exe()?;
    let command = |first: usize| {
        let mut command = Command::new(&program);
        command.args(["selftest", "--examine", &subject.name, "--first", &first.to_string(), "--data"]).arg(data);
        command.args(args.only.iter().flat_map(|text| ["--only", text.as_str()]));
        if let Some(fault) = args.emulate.and_then(|fault| clap::ValueEnum::to_possible_value(&fault)) {
            command.args(["--emulate", fault.get_name()]);
        }
        Ok(command)
    };
    let mut results: Vec<CheckResult> = Vec::new();
    test_process::run(command, Duration::from_secs(u64::from(args.timeout)), &mut |message| match message {
        CheckMessage::Begin { step, name } => {
            bar.set_position(*step as u64);
            bar.set_message(name.clone());
        }
        CheckMessage::Result(result) => {
            let result = CheckResult { figures: system::without_paths(&result.figures, data), ..result.clone() };
            bar.suspend(|| print_line(&markdown::line(&result)));
            results.push(result);
        }
        CheckMessage::End => {}
    });
    bar.finish_and_clear();
    Ok(SubjectResults { subject, results })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(name: &str) -> TestedGpu {
        TestedGpu { name: name.to_owned(), report: Err("no".to_owned()) }
    }

    fn names_of(named: Option<&str>, gpus: &[TestedGpu]) -> Vec<String> {
        let named = named.map(|text| named_entries(text).unwrap());
        subjects(named.as_deref(), gpus).into_iter().map(|subject| subject.name).collect()
    }

    #[test]
    fn every_gpu_is_tested_else_the_cpu() {
        assert_eq!(names_of(None, &[]), ["cpu"]);
        assert_eq!(names_of(None, &[broken("gpu:0")]), ["gpu:0"]);
        assert_eq!(names_of(Some("all"), &[broken("gpu:0")]), ["gpu:0", "cpu"]);
        assert_eq!(names_of(Some("gpu"), &[]), ["gpu"]);
        let two = [broken("gpu:0"), broken("gpu:1")];
        assert_eq!(names_of(Some("gpu,gpu:1,cpu:2"), &two), ["gpu:0", "gpu:1", "cpu:2", "gpu:0,gpu:1"]);
    }

    #[test]
    fn other_programs_and_precisions_are_refused() {
        for (text, part) in [("torch:cuda:0", "docs/pytorch.md"), ("gpu:0@f16", "without one"), ("tpu:0", "tpu:0")] {
            assert!(named_entries(text).unwrap_err().to_string().contains(part), "{text}");
        }
    }
}
