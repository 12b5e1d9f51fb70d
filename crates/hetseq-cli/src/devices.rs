//! `hetseq devices`.

use std::process::ExitCode;

use hetseq_train::bench::matmul_gflops;
use sysinfo::System;

use crate::args::DevicesArgs;
use crate::output::print_line;

pub(crate) fn devices(args: &DevicesArgs) -> anyhow::Result<ExitCode> {
    let mut system = System::new()?;
    system.refresh_memory();
    system.refresh_cpu_all();
    let cores = std::thread::available_parallelism()?.get();
    let name = system.cpus().first().map_or_else(|| "CPU".to_owned(), |cpu| cpu.brand().trim().to_owned());
    let (one, all) = (matmul_gflops(1)?, matmul_gflops(cores)?);
    let memory = system.total_memory();
    if args.json {
        let device = serde_json::json!({
            "name": "cpu", "model": name, "cores": cores, "memory_bytes": memory,
            "gflops_one_core": one, "gflops_all_cores": all, "precisions": ["f32"],
        });
        print_line(&serde_json::json!({ "devices": [device] }).to_string());
    } else {
        print_line(&format!("cpu   {name}, {cores} cores, {:.1} GiB of memory", memory as f64 / (1u64 << 30) as f64));
        print_line(&format!(
            "      f32 matrix products: {one:.0} GFLOP/s on one core, {all:.0} on all, each core by itself"
        ));
        print_line(&format!(
            "      `run.devices = \"cpu\"` makes {cores} single-threaded devices of it; `cpu:2x8` makes two of eight \
             threads"
        ));
    }
    Ok(ExitCode::SUCCESS)
}
