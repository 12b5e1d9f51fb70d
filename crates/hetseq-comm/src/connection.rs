//! A connection between two ranks that are known to each other: the socket, and its encryption if
//! enabled.
//!
//! Created by `rendezvous/handshake.rs`, or here for ranks that are threads of one process; becomes
//! a link in `stream/`.

use socket2::{Domain, Socket, Type};

use crate::encryption::Encryption;
use crate::error::CommError;

/// A connection whose handshake is complete.
pub(crate) struct Connection {
    /// A TCP connection, or one end of a socketpair.
    pub(crate) socket: Socket,
    pub(crate) encryption: Option<Encryption>,
}

/// Connects `world` ranks of this process by socketpairs. Returns the connections of each rank,
/// indexed by peer.
pub(crate) fn between_threads(world: usize) -> Result<Vec<Vec<Option<Connection>>>, CommError> {
    let mut ranks: Vec<Vec<_>> = (0..world).map(|_| (0..world).map(|_| None).collect()).collect();
    for (rank, peer) in (0..world).flat_map(|rank| (0..rank).map(move |peer| (rank, peer))) {
        let (near, far) = Socket::pair(Domain::UNIX, Type::STREAM, None)
            .map_err(|reason| CommError::System { what: "connect two threads by a socketpair", reason })?;
        ranks[rank][peer] = Some(Connection { socket: near, encryption: None });
        ranks[peer][rank] = Some(Connection { socket: far, encryption: None });
    }
    Ok(ranks)
}

/// A connection to a peer that is gone already.
pub(crate) fn lost() -> Result<Connection, CommError> {
    let pair = Socket::pair(Domain::UNIX, Type::STREAM, None);
    let (socket, _) = pair.map_err(|reason| CommError::System { what: "create a socketpair", reason })?;
    Ok(Connection { socket, encryption: None })
}
