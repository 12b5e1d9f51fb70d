//! An authenticated connection between two ranks: the socket, and its encryption if enabled.
//!
//! Created by `rendezvous/handshake.rs`; becomes a link in `tcp/`.

use std::net::TcpStream;

use crate::encryption::Encryption;

/// A connection whose handshake is complete.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) encryption: Option<Encryption>,
}
