//! Output never blocks training, even if standard error is a pipe that is not read.

use std::io::{Write, pipe};
use std::time::Duration;

use crate::cluster::codes;
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

/// Capacity of a pipe on Linux. Writing one more byte blocks.
const PIPE_BYTES: usize = 64 * 1024;

#[test]
fn a_run_finishes_if_standard_error_is_not_read() {
    let dir = RunDir::new();
    let (_reader, mut writer) = pipe().unwrap();
    writer.write_all(&vec![b'x'; PIPE_BYTES]).unwrap();
    let ended = shipped(&dir, 40).set("run.log_every", 1).start_with_stderr(writer).wait(Duration::from_secs(60));
    assert_eq!(codes(&ended), [Some(0)]);
    assert_eq!(dir.end(), (40, "finished".to_owned()));
    Reference::shipped().assert_losses(&dir, 40, "standard error is not read");
}

#[test]
fn a_failing_run_ends_if_standard_error_is_not_read() {
    let dir = RunDir::new();
    let (_reader, mut writer) = pipe().unwrap();
    writer.write_all(&vec![b'x'; PIPE_BYTES]).unwrap();
    let ended = shipped(&dir, 40).set("task.data", "/nowhere").start_with_stderr(writer).wait(Duration::from_secs(30));
    assert_eq!(codes(&ended), [Some(2)]);
}
