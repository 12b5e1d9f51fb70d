//! Sockets: listening and connecting, the choice of address, interface and port, and TCP options.
//!
//! Thin over `socket2`; no protocol. Called by `rendezvous/` and `stream/`.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::error::CommError;
use crate::options::Options;

/// Enough for every rank of a large run to connect at the same instant.
const BACKLOG: i32 = 1024;

/// Returns the address to bind to, if the options name an interface or address.
pub(crate) fn chosen_ip(options: &Options) -> Result<Option<IpAddr>, CommError> {
    let Some(wanted) = options.interface.as_deref() else { return Ok(None) };
    let bare = wanted.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse() {
        return Ok(Some(ip));
    }
    let source = |source| CommError::System { what: "list its network interfaces", reason: source };
    let interfaces = if_addrs::get_if_addrs().map_err(source)?;
    let named = interfaces.iter().filter(|interface| interface.name == wanted);
    // An interface may have several addresses. IPv4 comes first, since most clusters route it.
    // Link-local addresses come last, since they need a scope that means nothing on another
    // machine.
    let best = named.map(|interface| interface.ip()).min_by_key(|ip| match ip {
        IpAddr::V4(ip) => u8::from(ip.is_link_local()) * 2,
        IpAddr::V6(ip) => 1 + u8::from(ip.is_unicast_link_local()) * 2,
    });
    let available = || {
        let listed = interfaces.iter().map(|i| format!("{} ({})", i.name, i.ip()));
        listed.collect::<Vec<_>>().join(", ")
    };
    best.map(Some).ok_or_else(|| CommError::NoInterface { wanted: wanted.to_owned(), available: available() })
}

/// Returns the addresses at which others may reach our listener, the most likely first: the chosen
/// address, else those of all interfaces.
pub(crate) fn own_addresses(chosen: Option<IpAddr>, port: u16) -> Result<Vec<SocketAddr>, CommError> {
    if let Some(ip) = chosen.filter(|ip| !ip.is_unspecified()) {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let source = |source| CommError::System { what: "list its network interfaces", reason: source };
    let mut ips: Vec<IpAddr> = if_addrs::get_if_addrs().map_err(source)?.iter().map(if_addrs::Interface::ip).collect();
    // A link-local address needs a scope that means nothing on another machine. Loopback is for
    // ranks on this machine; on another machine it leads to a process that does not know this
    // rendezvous.
    ips.retain(|ip| match ip {
        IpAddr::V4(ip) => !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    });
    ips.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6(), *ip));
    ips.dedup();
    Ok(ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
}

/// Opens rank 0's listener on the rendezvous port.
pub(crate) fn listen_at(ip: Option<IpAddr>, port: u16) -> Result<TcpListener, CommError> {
    listen(ip, port).map_err(|(address, source)| match source.kind() {
        std::io::ErrorKind::AddrInUse => CommError::AddressInUse { address: address.to_string() },
        _ => CommError::Listen { address: address.to_string(), reason: source },
    })
}

/// Opens the listener for connections between ranks, on any allowed port.
pub(crate) fn listen_anywhere(ip: Option<IpAddr>, options: &Options) -> Result<TcpListener, CommError> {
    let ports = options.ports.clone().unwrap_or(0..=0);
    let (first, last) = (*ports.start(), *ports.end());
    for port in ports {
        match listen(ip, port) {
            Ok(listener) => return Ok(listener),
            Err((_, source)) if source.kind() == std::io::ErrorKind::AddrInUse => {}
            Err((address, source)) => {
                return Err(CommError::Listen { address: address.to_string(), reason: source });
            }
        }
    }
    Err(CommError::NoFreePort { first, last })
}

/// Without an address it listens on all of them: IPv6 and IPv4 through one socket where the system
/// can.
fn listen(ip: Option<IpAddr>, port: u16) -> Result<TcpListener, (SocketAddr, std::io::Error)> {
    let any6 = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let any4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    let on = |address: SocketAddr| listen_on(address).map_err(|source| (address, source));
    match ip {
        Some(ip) => on(SocketAddr::new(ip, port)),
        None => on(any6).or_else(|(address, source)| match source.kind() {
            // Do not retry with IPv4 if the port is taken: that could split the ranks over two
            // programs.
            std::io::ErrorKind::AddrInUse | std::io::ErrorKind::PermissionDenied => Err((address, source)),
            _ => on(any4),
        }),
    }
}

fn listen_on(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    // On Unix this lets a restarted run reuse the port while old connections linger; elsewhere it
    // would let two programs share the port.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Ends a blocking `accept` of another thread.
pub(crate) fn interrupt_accept(listener: &TcpListener) {
    // On Linux, shutting down the listener ends `accept`. Other systems reject that, but there a
    // connection ends it.
    if SockRef::from(listener).shutdown(std::net::Shutdown::Both).is_ok() {
        return;
    }
    if let Ok(mut address) = listener.local_addr() {
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        // If this cannot connect, no other process can either, and the thread stays until the
        // process ends.
        _ = TcpStream::connect_timeout(&address, Duration::from_secs(1));
    }
}

/// Connects within `limit`, from the chosen interface if there is one.
pub(crate) fn dial(to: SocketAddr, from: Option<IpAddr>, limit: Duration) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(ip) = from.filter(|ip| ip.is_ipv4() == to.is_ipv4()) {
        socket.bind(&SocketAddr::new(ip, 0).into())?;
    }
    // Zero is not a valid timeout.
    socket.connect_timeout(&to.into(), limit.max(Duration::from_millis(1)))?;
    let stream = TcpStream::from(socket);
    // Connecting to a free local port can connect to itself, if the system picks that same port as
    // the source.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(std::io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Writes like `TcpStream::write_vectored`, to any stream socket: a closed connection is an error and
/// never SIGPIPE, also in a program that has restored the default of that signal. The `write` of
/// `socket2` and every `write_vectored` would raise it.
pub(crate) fn write(socket: &Socket, parts: &[IoSlice<'_>]) -> std::io::Result<usize> {
    // Apple's systems have an option of the socket instead, which is set where it is created.
    #[cfg(target_vendor = "apple")]
    const FLAGS: libc::c_int = 0;
    #[cfg(not(target_vendor = "apple"))]
    const FLAGS: libc::c_int = libc::MSG_NOSIGNAL;
    socket.send_vectored_with_flags(parts, FLAGS)
}

/// Keepalive settings of a waiting connection: silence before the first probe, and the interval
/// between probes. On Linux nine probes without an answer end the connection.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(1));

/// Sets TCP keepalive. With `true` the system detects within about 15 seconds that the machine at
/// the other end is gone; for connections that stay silent for long. `false` is for connections
/// with heartbeats and their own limit.
pub(crate) fn set_keepalive(stream: &TcpStream, enabled: bool) -> std::io::Result<()> {
    let socket = SockRef::from(stream);
    if enabled { socket.set_tcp_keepalive(&KEEPALIVE) } else { socket.set_keepalive(false) }
}

/// The longest pause before TCP repeats a lost packet by default: two minutes on Linux.
const LONGEST_RETRY: Duration = Duration::from_secs(120);
/// The shortest bound that Linux accepts.
const BOUNDED_RETRY: Duration = Duration::from_secs(1);
/// `TCP_USER_TIMEOUT` and `TCP_RTO_MAX_MS` of Linux; the latter exists since 6.15.
const USER_TIMEOUT: libc::c_int = 18;
const RTO_MAX: libc::c_int = 44;

/// Returns the longest pause before a lost packet is repeated on connections with
/// [`set_user_timeout`].
pub(crate) fn longest_retry() -> Duration {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP));
    let socket = socket.or_else(|_| Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)));
    match socket.and_then(|socket| set_millis(&socket, RTO_MAX, BOUNDED_RETRY)) {
        Ok(()) => BOUNDED_RETRY,
        Err(_) => LONGEST_RETRY,
    }
}

/// Keeps the system from giving up a connection before `limit`, and lets it detect soon that a
/// network is back; for connections with heartbeats. `limit` must also cover a peer that is alive
/// but does not read, because the system ends a connection that could not send for that long.
/// Options that the system does not support are left unchanged.
pub(crate) fn set_user_timeout(socket: &Socket, limit: Duration) {
    // With bounded pauses alone, the system would count retries and give up after 15 seconds.
    if set_millis(socket, USER_TIMEOUT, limit).is_ok() {
        _ = set_millis(socket, RTO_MAX, BOUNDED_RETRY);
    }
}

/// Turns off pacing between ranks of one machine: there is no network to congest, and the timers of a
/// congestion control that paces packets, such as BBR, cost time: a sum of 440 MB between 2 ranks took
/// 1.3 times as long, 25 MB between 4 ranks 1.2 times (medians of 3 runs on a busy machine).
/// `reno` is part of every Linux and needs no privilege. Other systems are left unchanged.
pub(crate) fn avoid_pacing_on_one_machine(socket: &Socket) {
    #[cfg(target_os = "linux")]
    if let (Ok(near), Ok(far)) = (socket.local_addr(), socket.peer_addr()) {
        let ip = |address: &socket2::SockAddr| address.as_socket().map(|address| address.ip());
        if ip(&near).is_some() && ip(&near) == ip(&far) {
            _ = socket.set_tcp_congestion(b"reno");
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Sets a TCP option that is a number of milliseconds.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "no crate offers a safe call for RTO_MAX")]
fn set_millis(socket: &impl AsRawFd, option: libc::c_int, limit: Duration) -> std::io::Result<()> {
    let millis = libc::c_int::try_from(limit.as_millis()).unwrap_or(libc::c_int::MAX);
    let (value, size) = ((&raw const millis).cast(), size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the socket is open, and the system reads one number that outlives the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, option, value, size) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn set_millis(_: &impl AsRawFd, _: libc::c_int, _: Duration) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_interface(interface: &str) -> Options {
        Options { interface: Some(interface.to_owned()), ..Options::default() }
    }

    #[test]
    fn an_interface_is_a_name_or_an_address() {
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        assert_eq!(chosen_ip(&Options::default()).unwrap(), None);
        assert_eq!(chosen_ip(&with_interface("127.0.0.1")).unwrap(), Some(loopback));
        assert_eq!(chosen_ip(&with_interface("[::1]")).unwrap(), Some("::1".parse().unwrap()));
        let all = if_addrs::get_if_addrs().unwrap();
        if let Some(interface) = all.iter().find(|i| i.ip() == loopback) {
            assert_eq!(chosen_ip(&with_interface(&interface.name)).unwrap(), Some(loopback));
        }
        let error = chosen_ip(&with_interface("ib77")).unwrap_err().to_string();
        assert!(error.contains("ib77") && error.contains("127.0.0.1"), "{error}");
    }

    #[test]
    fn a_blocking_accept_is_interrupted() {
        let listener = listen_at(None, 0).unwrap();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept().is_err());
            std::thread::sleep(Duration::from_millis(50));
            interrupt_accept(&listener);
            // Whether it returns an error or a connection depends on the system.
            let _ = accepting.join().unwrap();
        });
    }

    #[test]
    fn a_taken_port_is_named() {
        let ip = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let taken = listen_at(ip, 0).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = listen_at(ip, port).unwrap_err();
        assert!(matches!(&error, CommError::AddressInUse { address } if address.ends_with(&port.to_string())));
        let options = Options { ports: Some(port..=port), ..Options::default() };
        assert!(matches!(listen_anywhere(ip, &options), Err(CommError::NoFreePort { .. })));
    }
}
