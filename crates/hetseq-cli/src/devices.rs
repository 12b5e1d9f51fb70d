//! `hetseq devices`: lists and measures the devices of this machine. A driver may crash or hang the
//! process that calls it, so this program starts itself again to test each GPU, and prints the list
//! whatever happens there.

use std::io::Read;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use hetseq_train::bench::matmul_gflops;
use hetseq_train::devices::backend::{self, GpuReport};
use hetseq_train::{DeviceSpec, devices_named};
use serde_json::json;
use sysinfo::System;

use crate::args::DevicesArgs;
use crate::output::{eprint_line, print_line};
use crate::torch_devices::TorchDevices;

/// Long, because a GPU compiles its kernels when it is used for the first time.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The value of `--examine` that lists the names of the GPUs; any other value is such a name.
const LIST: &str = "list";

pub(crate) fn devices(args: &DevicesArgs) -> anyhow::Result<ExitCode> {
    if let Some(what) = &args.examine {
        return examine(what);
    }
    let cpu = CpuReport::measure()?;
    let gpus = test_gpus();
    if args.json {
        let gpu = |TestedGpu { name, report }: &TestedGpu| match report {
            Ok(report) => json!(report),
            Err(reason) => json!({ "name": name, "error": reason }),
        };
        let all: Vec<_> = std::iter::once(cpu.json()).chain(gpus.iter().map(gpu)).collect();
        let torch = TorchDevices::find(args.python.as_deref());
        print_line(&json!({ "devices": all, "torch": torch.json() }).to_string());
        return Ok(ExitCode::SUCCESS);
    }
    let mut entries = cpu.entry();
    let torch = TorchDevices::find(args.python.as_deref());
    entries.extend(gpu_entries(&gpus));
    entries.extend(entry("torch", &torch.lines()));
    entries.iter().for_each(|line| print_line(line));
    Ok(ExitCode::SUCCESS)
}

/// A GPU that was tested in another process.
pub(crate) struct TestedGpu {
    pub(crate) name: String,
    /// Or why it cannot be used.
    pub(crate) report: Result<GpuReport, String>,
}

/// Tests all GPUs.
pub(crate) fn test_gpus() -> Vec<TestedGpu> {
    let names = match run_examine(LIST) {
        Ok(names) => serde_json::from_str::<Vec<String>>(&names).unwrap_or_default(),
        Err(reason) => {
            let report = Err(format!("cannot list the GPUs: {reason}"));
            return vec![TestedGpu { name: "gpu".to_owned(), report }];
        }
    };
    let test = |name: String| {
        eprint_line(&format!("testing {name} ..."));
        let report = run_examine(&name).and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
        TestedGpu { name, report }
    };
    names.into_iter().map(test).collect()
}

/// The lines about the GPUs, or about why there are none.
pub(crate) fn gpu_entries(gpus: &[TestedGpu]) -> Vec<String> {
    if let Some(reason) = backend::WITHOUT_GPU_SUPPORT {
        return entry("gpu", &[reason.to_owned()]);
    }
    if gpus.is_empty() {
        let fix = if cfg!(target_os = "linux") {
            "install its driver and the Vulkan loader (libvulkan1)"
        } else {
            "install its driver"
        };
        return entry("gpu", &[format!("none found; if this machine has one, {fix}")]);
    }
    let lines = |TestedGpu { name, report }: &TestedGpu| match report {
        Ok(report) => gpu_entry(report),
        Err(reason) => entry(name, &[format!("cannot be used: {reason}")]),
    };
    gpus.iter().flat_map(lines).collect()
}

/// Runs in the child process: prints the list of GPUs or the report on one as JSON.
fn examine(what: &str) -> anyhow::Result<ExitCode> {
    if what == LIST {
        let names: Vec<String> = backend::gpu_kinds().iter().map(backend::name_of).collect();
        print_line(&serde_json::to_string(&names)?);
        return Ok(ExitCode::SUCCESS);
    }
    let specs = devices_named(what).map_err(anyhow::Error::msg)?;
    match specs.first().map(|DeviceSpec { kind, .. }| backend::examine(kind)) {
        Some(Ok(report)) => print_line(&serde_json::to_string(&report)?),
        Some(Err(reason)) => anyhow::bail!(reason),
        None => anyhow::bail!("there is no such device"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs [`examine`] in a child process. Returns its output, or why it failed.
fn run_examine(what: &str) -> Result<String, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    output_of(Command::new(program).args(["devices", "--examine", what]))
}

/// Returns the output of a command, or why it failed.
pub(crate) fn output_of(command: &mut Command) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot start a process: {error}");
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let (out, err) = (read_in_thread(child.stdout.take()), read_in_thread(child.stderr.take()));
    let status = wait(&mut child)?;
    let text = |thread: std::thread::JoinHandle<String>| thread.join().unwrap_or_default();
    let (out, err) = (text(out), text(err));
    if status.success() {
        return Ok(out);
    }
    if let Some(reason) = err.lines().rev().find_map(|line| line.strip_prefix("error: ")) {
        return Err(reason.to_owned());
    }
    let last = err.lines().rev().find(|line| !line.trim().is_empty());
    let last = last.map_or_else(String::new, |line| format!(": {}", line.trim()));
    Err(format!("the process that tested it ended with {status}{last}"))
}

fn read_in_thread(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for a process to end; kills it after [`TIMEOUT`].
pub(crate) fn wait(child: &mut Child) -> Result<std::process::ExitStatus, String> {
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if started.elapsed() < TIMEOUT => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                _ = child.kill();
                _ = child.wait();
                return Err(format!("timed out after {} s", TIMEOUT.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// The CPU's properties and measurements.
pub(crate) struct CpuReport {
    model: String,
    cores: usize,
    memory_bytes: u64,
    one_gflops: f64,
    all_gflops: f64,
    gigabytes_per_s: f64,
    precisions: Vec<String>,
}

impl CpuReport {
    pub(crate) fn measure() -> anyhow::Result<Self> {
        let mut system = System::new()?;
        system.refresh_memory();
        system.refresh_cpu_all();
        let cores = std::thread::available_parallelism()?.get();
        Ok(CpuReport {
            model: system.cpus().first().map_or_else(|| "CPU".to_owned(), |cpu| cpu.brand().trim().to_owned()),
            cores,
            memory_bytes: system.total_memory(),
            one_gflops: matmul_gflops(1)?,
            all_gflops: matmul_gflops(cores)?,
            gigabytes_per_s: backend::host_gigabytes_per_s().map_err(anyhow::Error::msg)?,
            precisions: backend::host_precisions().iter().map(ToString::to_string).collect(),
        })
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "name": "cpu", "model": self.model, "cores": self.cores, "memory_bytes": self.memory_bytes,
            "gflops_one_core": self.one_gflops, "gflops_all_cores": self.all_gflops, "precisions": self.precisions,
            "gigabytes_per_s": self.gigabytes_per_s,
        })
    }

    /// The lines about it.
    pub(crate) fn entry(&self) -> Vec<String> {
        let CpuReport { model, cores, one_gflops, all_gflops, gigabytes_per_s, .. } = self;
        entry(
            "cpu",
            &[
                format!("{model}, {cores} cores, {} of memory", gib(self.memory_bytes)),
                format!(
                    "f32 matmul: {one_gflops:.0} GFLOP/s on one core, {all_gflops:.0} GFLOP/s on all, each core by itself"
                ),
                format!("memory: {gigabytes_per_s:.1} GB/s on one core; precisions: {}", self.precisions.join(", ")),
                format!(
                    "run.devices = \"cpu\" uses it as {cores} single-threaded devices, \"cpu:2x8\" as two devices of eight \
                     threads, \"cpu:0-3\" as one device on these cores"
                ),
            ],
        )
    }
}

fn gpu_entry(report: &GpuReport) -> Vec<String> {
    let mut lines = vec![format!("{} ({}, {})", report.model, report.vendor, report.interface)];
    if !report.driver.is_empty() {
        lines.push(format!("driver: {}", report.driver));
    }
    if report.is_software {
        lines.push("a software renderer, which computes on the CPU: for tests only, and not part of `all`".to_owned());
    }
    let memory = report.memory_bytes.map_or_else(|| "not reported by the driver".to_owned(), gib);
    let free = report.free_bytes.map_or_else(String::new, |bytes| format!(", {} of it free", gib(bytes)));
    let buffer =
        report.buffer_bytes.map_or_else(String::new, |bytes| format!(", at most {} in one tensor", gib(bytes)));
    lines.push(format!("memory: {memory}{free}{buffer}, {:.1} GB/s", report.gigabytes_per_s));
    let speeds = report.precisions.iter().zip(&report.gflops);
    let speeds: Vec<String> = speeds.map(|(precision, gflops)| format!("{precision} {gflops:.0} GFLOP/s")).collect();
    lines.push(format!("matmul: {}; kernel launch: {:.0} us", speeds.join(", "), report.launch_us));
    entry(&report.name, &lines)
}

/// The name of a device and the lines about it in two columns.
fn entry(name: &str, lines: &[String]) -> Vec<String> {
    let named = |(i, line): (usize, &String)| format!("{:<8}{line}", if i == 0 { name } else { "" });
    lines.iter().enumerate().map(named).collect()
}

pub(crate) fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}
