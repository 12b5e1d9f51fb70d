//! `hetseq devices`. A driver may crash or hang whoever asks it, so every GPU is tried in a process of its own, this program
//! started again; whatever comes of it, the list is printed.

use std::io::Read;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use hetseq_train::bench::matmul_gflops;
use hetseq_train::engine::{self, GpuReport};
use hetseq_train::{DeviceSpec, devices_named};
use serde_json::json;
use sysinfo::System;

use crate::args::DevicesArgs;
use crate::output::{print_line, say};

/// The first time a GPU compiles what it computes.
const PATIENCE: Duration = Duration::from_secs(300);
/// What to ask the other process for, beside names of GPUs.
const LIST: &str = "list";

pub(crate) fn devices(args: &DevicesArgs) -> anyhow::Result<ExitCode> {
    if let Some(asked) = &args.examine {
        return examine(asked);
    }
    let cpu = Cpu::measure()?;
    let gpus: Vec<(String, Result<GpuReport, String>)> = match ask(LIST) {
        Ok(names) => {
            let names: Vec<String> = serde_json::from_str(&names).unwrap_or_default();
            let tried = |name: String| {
                say(&format!("trying {name} ..."));
                let report = ask(&name).and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
                (name, report)
            };
            names.into_iter().map(tried).collect()
        }
        Err(reason) => vec![("gpu".to_owned(), Err(format!("the drivers could not be asked: {reason}")))],
    };
    if args.json {
        let gpu = |(name, report): &(String, Result<GpuReport, String>)| match report {
            Ok(report) => json!(report),
            Err(reason) => json!({ "name": name, "error": reason }),
        };
        let all: Vec<_> = std::iter::once(cpu.json()).chain(gpus.iter().map(gpu)).collect();
        print_line(&json!({ "devices": all }).to_string());
        return Ok(ExitCode::SUCCESS);
    }
    cpu.print();
    for (name, report) in &gpus {
        match report {
            Ok(report) => print_gpu(report),
            Err(reason) => entry(name, &[format!("cannot be used: {reason}")]),
        }
    }
    if gpus.is_empty() {
        let remedy = if cfg!(target_os = "linux") {
            "install the driver of your card and the Vulkan loader (libvulkan1)"
        } else {
            "install the driver of your card"
        };
        entry("gpu", &[format!("none found: if there is one, {remedy}")]);
    }
    Ok(ExitCode::SUCCESS)
}

/// The other process: prints what was asked for as JSON.
fn examine(asked: &str) -> anyhow::Result<ExitCode> {
    if asked == LIST {
        let names: Vec<String> = engine::places().iter().map(engine::name_of).collect();
        print_line(&serde_json::to_string(&names)?);
        return Ok(ExitCode::SUCCESS);
    }
    let specs = devices_named(asked).map_err(anyhow::Error::msg)?;
    match specs.first().map(|DeviceSpec { place, .. }| engine::examine(place)) {
        Some(Ok(report)) => print_line(&serde_json::to_string(&report)?),
        Some(Err(reason)) => anyhow::bail!(reason),
        None => anyhow::bail!("there is no such device"),
    }
    Ok(ExitCode::SUCCESS)
}

/// What another process of this program says to it, or what became of it.
fn ask(what: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("no other process could be started: {error}");
    let mut child = Command::new(std::env::current_exe().map_err(failed)?)
        .args(["devices", "--examine", what])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let status = wait(&mut child)?;
    let text = |thread: std::thread::JoinHandle<String>| thread.join().unwrap_or_default();
    let (out, err) = (text(out), text(err));
    if status.success() {
        return Ok(out);
    }
    let last = err.lines().rev().find_map(|line| line.strip_prefix("error: "));
    Err(last.map_or_else(|| format!("it crashed the process that tried it ({status})"), str::to_owned))
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait(child: &mut Child) -> Result<std::process::ExitStatus, String> {
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if started.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                _ = child.kill();
                _ = child.wait();
                return Err(format!("it gave no answer for {} s", PATIENCE.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

struct Cpu {
    model: String,
    cores: usize,
    memory_bytes: u64,
    one_gflops: f64,
    all_gflops: f64,
    gigabytes_per_s: f64,
    precisions: Vec<String>,
}

impl Cpu {
    fn measure() -> anyhow::Result<Self> {
        let mut system = System::new()?;
        system.refresh_memory();
        system.refresh_cpu_all();
        let cores = std::thread::available_parallelism()?.get();
        Ok(Cpu {
            model: system.cpus().first().map_or_else(|| "CPU".to_owned(), |cpu| cpu.brand().trim().to_owned()),
            cores,
            memory_bytes: system.total_memory(),
            one_gflops: matmul_gflops(1)?,
            all_gflops: matmul_gflops(cores)?,
            gigabytes_per_s: engine::host_gigabytes_per_s().map_err(anyhow::Error::msg)?,
            precisions: engine::host_precisions().iter().map(ToString::to_string).collect(),
        })
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "name": "cpu", "model": self.model, "cores": self.cores, "memory_bytes": self.memory_bytes,
            "gflops_one_core": self.one_gflops, "gflops_all_cores": self.all_gflops, "precisions": self.precisions,
            "gigabytes_per_s": self.gigabytes_per_s,
        })
    }

    fn print(&self) {
        let Cpu { model, cores, one_gflops, all_gflops, gigabytes_per_s, .. } = self;
        entry(
            "cpu",
            &[
                format!("{model}, {cores} cores, {} of memory", gib(self.memory_bytes)),
                format!(
                    "f32 matrix products: {one_gflops:.0} GFLOP/s on one core, {all_gflops:.0} on all, each core by itself"
                ),
                format!("memory: {gigabytes_per_s:.1} GB/s on one core; computes in {}", self.precisions.join(", ")),
                format!(
                    "`run.devices = \"cpu\"` makes {cores} single-threaded devices of it; `cpu:2x8` makes two of eight threads, \
                 `cpu:0-3` one on these cores"
                ),
            ],
        );
    }
}

fn print_gpu(report: &GpuReport) {
    let mut lines = vec![format!("{} ({}, by {})", report.model, report.vendor, report.interface)];
    if !report.driver.is_empty() {
        lines.push(format!("driver: {}", report.driver));
    }
    if report.is_software {
        lines.push(
            "a software renderer, which computes on the CPU: good for tests, and never chosen by `all`".to_owned(),
        );
    }
    let memory = report.memory_bytes.map_or_else(|| "not told by the driver".to_owned(), gib);
    let free = report.free_bytes.map_or_else(String::new, |bytes| format!(", {} of it free", gib(bytes)));
    let buffer =
        report.buffer_bytes.map_or_else(String::new, |bytes| format!(", at most {} in one tensor", gib(bytes)));
    lines.push(format!("memory: {memory}{free}{buffer}, {:.1} GB/s", report.gigabytes_per_s));
    let products = report.precisions.iter().zip(&report.gflops);
    let products: Vec<String> =
        products.map(|(precision, gflops)| format!("{precision} {gflops:.0} GFLOP/s")).collect();
    lines.push(format!("matrix products: {}; an operation starts in {:.0} us", products.join(", "), report.launch_us));
    entry(&report.name, &lines);
}

/// A device's name, and what is said of it beside it.
fn entry(name: &str, lines: &[String]) {
    for (i, line) in lines.iter().enumerate() {
        print_line(&format!("{:<8}{line}", if i == 0 { name } else { "" }));
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}
