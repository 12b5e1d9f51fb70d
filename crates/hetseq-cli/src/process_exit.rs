//! The end of the process, for `lib.rs`.

#[cfg(all(unix, feature = "gpu"))]
use std::io::Write;
use std::process::ExitCode;

/// Ends this process. A build with GPU support ends without the destructors of loaded libraries:
/// drivers keep threads that never end, such as those of a software renderer that compile and
/// compute, and a destructor that frees what they use now and then corrupts the heap. By then all
/// files are written and the run has its result, which such a crash would turn into a failure.
#[cfg(all(unix, feature = "gpu"))]
#[expect(unsafe_code, reason = "the standard library ends a process only with destructors")]
pub(crate) fn end(code: ExitCode) -> ExitCode {
    _ = std::io::stdout().flush();
    // A code cannot be read back, only compared.
    match (0..=u8::MAX).find(|&number| ExitCode::from(number) == code) {
        // SAFETY: never returns; nothing of this process is used after it.
        Some(number) => unsafe { libc::_exit(number.into()) },
        None => code,
    }
}

#[cfg(not(all(unix, feature = "gpu")))]
pub(crate) fn end(code: ExitCode) -> ExitCode {
    code
}
