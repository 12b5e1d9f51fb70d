//! Hashes the source of all crates that ranks share, to distinguish builds of one version: messages
//! between ranks have no field names, and each rank computes the plan of all. Features do not
//! count: builds with and without GPUs work together.

#![allow(clippy::print_stdout)] // Cargo reads what a build script prints.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The crate that other ranks do not depend on.
const EXCLUDED: &str = "hetseq-cli";

fn main() -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir("..")? {
        let entry = entry?;
        let source = entry.path().join("src");
        if entry.file_name() != EXCLUDED && source.is_dir() {
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

/// The FNV-1a hash: equal on all platforms, unlike the standard library's.
struct Fnv(u64);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        // Git may change line endings. A zero byte, which no source contains, separates files.
        let bytes = bytes.iter().copied().filter(|byte| *byte != b'\r');
        for byte in bytes.chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
