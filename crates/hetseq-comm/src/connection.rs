//! A connection between two ranks whose handshake is done: the socket, and its encryption if it has one.
//!
//! Made by `rendezvous/talk.rs`; `tcp.rs` takes it apart into a reading and a writing half, and cannot tell whether what
//! it writes is sealed.

use std::io::{BufReader, Read, Result, Write};
use std::net::TcpStream;

use crate::seal::{Seal, SealedReader, SealedWriter};

/// Several records, which are read with few system calls.
const BUFFER_BYTES: usize = 256 << 10;

pub(crate) type ReadHalf = Box<dyn Read + Send>;
pub(crate) type WriteHalf = Box<dyn Write + Send>;

pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) seal: Option<Seal>,
}

impl Connection {
    /// What to read from and to write to, for a thread each; the socket itself serves to set limits and to cut both off.
    pub(crate) fn split(self) -> Result<(TcpStream, ReadHalf, WriteHalf)> {
        let (from, to) = (self.stream.try_clone()?, self.stream.try_clone()?);
        let Some(Seal { opener, sealer }) = self.seal else {
            return Ok((self.stream, Box::new(from), Box::new(to)));
        };
        let from = BufReader::with_capacity(BUFFER_BYTES, from);
        Ok((self.stream, Box::new(SealedReader { from, opener }), Box::new(SealedWriter { to, sealer })))
    }
}
