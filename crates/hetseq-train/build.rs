//! Hashes the source of all crates that ranks share, so that two builds of one version are told
//! apart: ranks read each other's messages without names of fields, and each computes the plan of
//! all. Features do not count: a build for GPUs and one without work together.

#![allow(clippy::print_stdout)] // Cargo reads what a build script prints.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What no other rank depends on.
const OWN: &str = "hetseq-cli";

fn main() -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir("..")? {
        let entry = entry?;
        let source = entry.path().join("src");
        if entry.file_name() != OWN && source.is_dir() {
            println!("cargo:rerun-if-changed={}", source.display());
            find(&source, &mut files)?;
        }
    }
    files.sort();
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    for file in &files {
        hash.add(file.to_string_lossy().as_bytes());
        hash.add(&fs::read(file)?);
    }
    println!("cargo:rustc-env=HETSEQ_BUILD={:016x}", hash.0);
    Ok(())
}

fn find(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// FNV-1a: the same everywhere, unlike the standard library's.
struct Fnv(u64);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        // Git may end lines differently. A zero, which no source has, keeps two files apart.
        let bytes = bytes.iter().copied().filter(|byte| *byte != b'\r');
        for byte in bytes.chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
