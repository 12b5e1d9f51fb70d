//! The calls into the MPI library, as functions that return errors and own the memory that MPI
//! reads and writes. The transport (`mod.rs`) makes all of them, from one thread.
//!
//! rsmpi starts and ends MPI. Its functions that send and receive ignore the codes that MPI
//! returns, so those are called directly; all `unsafe` code of this crate is here.

#![allow(unsafe_code, reason = "MPI is a C library that keeps pointers to buffers")]

use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::thread::ThreadId;

use mpi::environment::{Universe, initialize_with_threading, library_version};
use mpi::{Threading, ffi};

use crate::buffers::Payload;

/// The text of an error that MPI returned.
pub(super) type MpiError = String;

/// MPI between its initialization and its end. Only the thread that created it may use it, and only
/// one can exist per process, ever.
pub(super) struct MpiLibrary {
    /// Finalizes MPI when it is dropped; `None` after that, or if it must not happen.
    universe: Option<Universe>,
    communicator: ffi::MPI_Comm,
    pub(super) rank: usize,
    pub(super) world: usize,
    thread: ThreadId,
}

// SAFETY: the handle of the communicator is plain data. `check_thread` finds a use by another
// thread.
unsafe impl Send for MpiLibrary {}

impl MpiLibrary {
    /// Initializes MPI and creates a communicator that no one else uses. A collective of all
    /// processes that the launcher started.
    pub(super) fn start() -> Result<MpiLibrary, MpiError> {
        let Some((universe, threading)) = initialize_with_threading(Threading::Funneled) else {
            return Err("MPI can be used only once in a process".to_owned());
        };
        if threading < Threading::Funneled {
            return Err(format!("the library supports no threads beside the one that uses it ({threading:?})"));
        }
        let (mut communicator, mut rank, mut world) = (unsafe { ffi::RSMPI_COMM_WORLD }, 0, 0);
        // SAFETY: MPI is initialized, and all pointers are to live variables. The new communicator
        // inherits the error handler; an error is returned from then on, where MPI would end the
        // process.
        unsafe {
            let errors_return = ffi::RSMPI_ERRORS_RETURN;
            check("MPI_Comm_set_errhandler", ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, errors_return))?;
            check("MPI_Comm_dup", ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &raw mut communicator))?;
            check("MPI_Comm_rank", ffi::MPI_Comm_rank(communicator, &raw mut rank))?;
            check("MPI_Comm_size", ffi::MPI_Comm_size(communicator, &raw mut world))?;
        }
        let thread = std::thread::current().id();
        Ok(MpiLibrary { universe: Some(universe), communicator, rank: rank as usize, world: world as usize, thread })
    }

    /// The name of the library, such as `Open MPI v4.1.4`.
    pub(super) fn version() -> String {
        let text = library_version().unwrap_or_default();
        text.lines().next().unwrap_or_default().split(',').next().unwrap_or_default().trim_end_matches('\0').to_owned()
    }

    /// MPI is used with `MPI_THREAD_FUNNELED`.
    pub(super) fn check_thread(&self) {
        debug_assert_eq!(self.thread, std::thread::current().id(), "MPI is used by a second thread");
    }

    /// Ends MPI. Waits for all processes, so only after all have said goodbye: it would hang if one
    /// is dead.
    pub(super) fn finalize(&mut self) {
        self.universe = None;
    }

    /// Starts to send a message. `peer` and `tag` are in range.
    pub(super) fn send(&self, peer: usize, tag: c_int, payload: Arc<Payload>) -> Result<Sending, MpiError> {
        // SAFETY: a static that MPI's initialization has set.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let (start, count) = (payload.as_ptr().cast(), payload.len() as c_int);
        // SAFETY: `Sending` keeps the payload, which does not move, until the request is complete.
        let code = unsafe {
            let bytes = ffi::RSMPI_UINT8_T;
            ffi::MPI_Isend(start, count, bytes, peer as c_int, tag, self.communicator, &raw mut request)
        };
        check("MPI_Isend", code)?;
        Ok(Sending { request, is_done: false, payload })
    }

    /// Returns a message that has arrived: from any peer or tag if they are `None`. Messages of one
    /// peer match in the order in which they were sent.
    pub(super) fn probe(&self, peer: Option<usize>, tag: Option<c_int>) -> Result<Option<ProbedMessage>, MpiError> {
        // SAFETY: all pointers are to live variables, and plain C structs may be zero.
        unsafe {
            let peer = peer.map_or(ffi::RSMPI_ANY_SOURCE, |peer| peer as c_int);
            let tag = tag.unwrap_or(ffi::RSMPI_ANY_TAG);
            let (mut has_arrived, mut bytes) = (0, 0);
            let mut message = ffi::RSMPI_MESSAGE_NULL;
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            let (flag, of_message) = (&raw mut has_arrived, &raw mut message);
            let code = ffi::MPI_Improbe(peer, tag, self.communicator, flag, of_message, &raw mut status);
            check("MPI_Improbe", code)?;
            if has_arrived == 0 {
                return Ok(None);
            }
            let code = ffi::MPI_Get_count(&raw const status, ffi::RSMPI_UINT8_T, &raw mut bytes);
            check("MPI_Get_count", code)?;
            let (peer, tag) = (status.MPI_SOURCE as usize, status.MPI_TAG);
            Ok(Some(ProbedMessage { message, peer, tag, bytes: usize::try_from(bytes).unwrap_or_default() }))
        }
    }
}

impl Drop for MpiLibrary {
    /// Without [`MpiLibrary::finalize`], a peer may be dead, and the end of MPI would wait for it.
    fn drop(&mut self) {
        std::mem::forget(self.universe.take());
    }
}

/// A message on its way to a peer.
pub(super) struct Sending {
    request: ffi::MPI_Request,
    is_done: bool,
    /// What MPI reads.
    payload: Arc<Payload>,
}

// SAFETY: a request may be completed by any thread, one at a time; see `MpiLibrary`.
unsafe impl Send for Sending {}

impl Sending {
    pub(super) fn bytes(&self) -> usize {
        self.payload.len()
    }

    /// Returns whether MPI does not need its memory any more.
    pub(super) fn is_done(&mut self) -> Result<bool, MpiError> {
        self.is_done = self.is_done || test(&mut self.request)?;
        Ok(self.is_done)
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if !self.is_done {
            // MPI may still read it.
            std::mem::forget(self.payload.clone());
        }
    }
}

/// A message that has arrived, or whose announcement has.
pub(super) struct ProbedMessage {
    message: ffi::MPI_Message,
    pub(super) peer: usize,
    pub(super) tag: c_int,
    pub(super) bytes: usize,
}

impl ProbedMessage {
    /// Starts to receive it into `buffer`, whose contents and length are arbitrary.
    pub(super) fn receive(mut self, mut buffer: Vec<u8>) -> Result<Receiving, MpiError> {
        buffer.resize(self.bytes, 0);
        // SAFETY: a static that MPI's initialization has set.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let (start, count) = (buffer.as_mut_ptr().cast(), self.bytes as c_int);
        // SAFETY: the buffer has room for the whole message. `Receiving` owns it until the request
        // is complete and does not touch it before.
        let code =
            unsafe { ffi::MPI_Imrecv(start, count, ffi::RSMPI_UINT8_T, &raw mut self.message, &raw mut request) };
        check("MPI_Imrecv", code)?;
        Ok(Receiving { request, is_done: false, tag: self.tag, buffer })
    }
}

/// A message that is being received.
pub(super) struct Receiving {
    request: ffi::MPI_Request,
    is_done: bool,
    pub(super) tag: c_int,
    /// What MPI writes.
    buffer: Vec<u8>,
}

// SAFETY: as for `Sending`.
unsafe impl Send for Receiving {}

impl Receiving {
    /// Returns whether the whole message is there.
    pub(super) fn is_done(&mut self) -> Result<bool, MpiError> {
        self.is_done = self.is_done || test(&mut self.request)?;
        Ok(self.is_done)
    }

    /// Takes the message, once it is there.
    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        if self.is_done { std::mem::take(&mut self.buffer) } else { Vec::new() }
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        if !self.is_done {
            // MPI may still write to it.
            std::mem::forget(std::mem::take(&mut self.buffer));
        }
    }
}

fn test(request: &mut ffi::MPI_Request) -> Result<bool, MpiError> {
    let mut is_complete = 0;
    // SAFETY: the request is one that MPI returned and has not completed; MPI accepts that its
    // status is ignored.
    let code = unsafe { ffi::MPI_Test(request, &raw mut is_complete, ffi::RSMPI_STATUS_IGNORE) };
    check("MPI_Test", code)?;
    Ok(is_complete != 0)
}

fn check(call: &str, code: c_int) -> Result<(), MpiError> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let (mut text, mut length) = ([0u8; ffi::MPI_MAX_ERROR_STRING as usize + 1], 0);
    // SAFETY: the buffer has the size that MPI asks for.
    let is_known = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &raw mut length) }
        == ffi::MPI_SUCCESS as c_int;
    let length = if is_known { usize::try_from(length).unwrap_or_default().min(text.len()) } else { 0 };
    Err(format!("{call} failed: {} (code {code})", String::from_utf8_lossy(&text[..length])))
}
