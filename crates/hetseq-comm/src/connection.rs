//! A connection between two ranks whose handshake is done: the socket, and its encryption if it has one.
//!
//! Made by `rendezvous/talk.rs`; becomes a wire in `tcp.rs`.

use std::net::TcpStream;

use crate::seal::Seal;

pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) seal: Option<Seal>,
}
