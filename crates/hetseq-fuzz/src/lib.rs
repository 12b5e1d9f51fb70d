//! What the fuzz tests of the other crates share: inputs from a seed, for a given time, with a limit
//! on the memory that an input may cost. Only tests depend on this crate.
//!
//! A fuzz test calls [`fuzz`] with a closure that builds one input and passes it to the code under
//! test, inside of [`bounded`]. Two environment variables control all of them:
//!
//! - `HETSEQ_FUZZ_S`: seconds per test, 1 if not set. `./test` sets more.
//! - `HETSEQ_FUZZ_SEED`: the seed of the first input, 1 if not set. The next input has the next
//!   seed, so the seed that a failure prints repeats it with its first input.

mod allocator;
mod damage;

use std::io::Write;
use std::time::{Duration, Instant};

pub use allocator::{CountingAllocator, bounded};
pub use damage::{Rng, damage};

/// Runs `input` with one seed after the other until the time is up, at least once.
pub fn fuzz(name: &str, mut input: impl FnMut(&mut Rng)) {
    allocator::require_installed();
    let (seconds, first): (f64, u64) = (variable("HETSEQ_FUZZ_S", 1.0), variable("HETSEQ_FUZZ_SEED", 1));
    let (start, limit) = (Instant::now(), Duration::from_secs_f64(seconds));
    allocator::reset_largest();
    // Printed before the first input: one that aborts the process prints nothing.
    say(&format!("fuzz {name}: {seconds} s from seed {first}"));
    let mut seed = first;
    loop {
        let failure = SeedOnFailure { name, seed };
        input(&mut Rng::new(seed));
        drop(failure);
        seed = seed.wrapping_add(1);
        if start.elapsed() >= limit {
            break;
        }
    }
    let (count, largest) = (seed.wrapping_sub(first), allocator::largest());
    say(&format!("fuzz {name}: {count} inputs passed; the most memory that one took: {largest} bytes"));
}

/// Says how to repeat an input that panicked.
struct SeedOnFailure<'a> {
    name: &'a str,
    seed: u64,
}

impl Drop for SeedOnFailure<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say(&format!("fuzz {}: failed; repeat this input with HETSEQ_FUZZ_SEED={}", self.name, self.seed));
        }
    }
}

/// Writes past the test harness, which drops the output of tests that pass or abort.
fn say(line: &str) {
    _ = writeln!(std::io::stderr(), "{line}");
}

fn variable<T: std::str::FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}
