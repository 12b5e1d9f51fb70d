//! Listening and dialling: which address, which interface, which port.
//!
//! Thin over `socket2`; no protocol. Called by `rendezvous/`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::error::CommError;
use crate::options::Options;

/// Enough for every rank of a large run to arrive in the same instant.
const BACKLOG: i32 = 1024;

/// The address to bind to, if the options name an interface or address.
pub(crate) fn chosen_ip(options: &Options) -> Result<Option<IpAddr>, CommError> {
    let Some(wanted) = options.interface.as_deref() else { return Ok(None) };
    let bare = wanted.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse() {
        return Ok(Some(ip));
    }
    let source = |source| CommError::System { what: "list its network interfaces", reason: source };
    let interfaces = if_addrs::get_if_addrs().map_err(source)?;
    let named = interfaces.iter().filter(|interface| interface.name == wanted);
    // An interface may have several addresses. IPv4 first, as the one that most clusters route; a
    // link-local one last, as it needs a scope that means nothing on another machine.
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

/// Where others may reach a listener of ours, the likeliest first: the chosen address, else those of all interfaces.
pub(crate) fn own_addresses(chosen: Option<IpAddr>, port: u16) -> Result<Vec<SocketAddr>, CommError> {
    if let Some(ip) = chosen.filter(|ip| !ip.is_unspecified()) {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let source = |source| CommError::System { what: "list its network interfaces", reason: source };
    let mut ips: Vec<IpAddr> = if_addrs::get_if_addrs().map_err(source)?.iter().map(if_addrs::Interface::ip).collect();
    // A link-local address needs a scope that means nothing on another machine. Loopback is for ranks on this one; on
    // another it leads to somebody who does not know the meeting.
    ips.retain(|ip| match ip {
        IpAddr::V4(ip) => !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    });
    ips.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6(), *ip));
    ips.dedup();
    Ok(ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
}

/// Rank 0's listener on the rendezvous port.
pub(crate) fn listen_at(ip: Option<IpAddr>, port: u16) -> Result<TcpListener, CommError> {
    listen(ip, port).map_err(|(address, source)| match source.kind() {
        std::io::ErrorKind::AddrInUse => CommError::AddressInUse { address: address.to_string() },
        _ => CommError::Listen { address: address.to_string(), reason: source },
    })
}

/// The listener for connections between ranks, on any allowed port.
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

/// Without an address: all of them, IPv6 and IPv4 through one socket where the system can.
fn listen(ip: Option<IpAddr>, port: u16) -> Result<TcpListener, (SocketAddr, std::io::Error)> {
    let any6 = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let any4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    let on = |address: SocketAddr| listen_on(address).map_err(|source| (address, source));
    match ip {
        Some(ip) => on(SocketAddr::new(ip, port)),
        None => on(any6).or_else(|(address, source)| match source.kind() {
            // A taken port is taken: retrying with IPv4 could split the ranks over two programs.
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
    // On Unix this only lets a restarted run have the port although old connections linger; elsewhere
    // it would let two programs share the port.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Ends the `accept` that another thread waits in.
pub(crate) fn wake(listener: &TcpListener) {
    // Linux lets go of a listener that is shut down; other systems refuse that, and a connection does it.
    if SockRef::from(listener).shutdown(std::net::Shutdown::Both).is_ok() {
        return;
    }
    if let Ok(mut address) = listener.local_addr() {
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        // If nobody can connect, nobody else will either, and the thread stays until the process ends.
        _ = TcpStream::connect_timeout(&address, Duration::from_secs(1));
    }
}

/// Connects from the chosen interface, if any, within `limit`.
pub(crate) fn dial(to: SocketAddr, from: Option<IpAddr>, limit: Duration) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(ip) = from.filter(|ip| ip.is_ipv4() == to.is_ipv4()) {
        socket.bind(&SocketAddr::new(ip, 0).into())?;
    }
    // Zero is not a valid limit.
    socket.connect_timeout(&to.into(), limit.max(Duration::from_millis(1)))?;
    let stream = TcpStream::from(socket);
    // Dialling a free local port can meet itself, when the system picks that very port as the source.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(std::io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// How long a waiting connection may be silent before the system asks whether the other end is still there, and how often
/// it asks. On Linux the ninth question without an answer is enough.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(1));

/// Lets the system find out by itself, within a quarter of a minute or so, whether the machine at the other end is gone: for
/// connections over which nobody speaks for long. `false` for those that have heartbeats and a limit of their own.
pub(crate) fn watch(stream: &TcpStream, watched: bool) -> std::io::Result<()> {
    let socket = SockRef::from(stream);
    if watched { socket.set_tcp_keepalive(&KEEPALIVE) } else { socket.set_keepalive(false) }
}

/// How long TCP may wait before it repeats a lost packet, if nothing else is asked for: two minutes
/// on Linux.
const LONGEST_RETRY: Duration = Duration::from_secs(120);
/// The shortest bound that Linux takes.
const BOUNDED_RETRY: Duration = Duration::from_secs(1);
/// `TCP_USER_TIMEOUT` and `TCP_RTO_MAX_MS` of Linux; the latter is known to 6.15 and later.
const USER_TIMEOUT: libc::c_int = 18;
const RTO_MAX: libc::c_int = 44;

/// The longest pause before a lost packet is repeated on connections that [`outlast`] was called
/// for.
pub(crate) fn longest_retry() -> Duration {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP));
    let socket = socket.or_else(|_| Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)));
    match socket.and_then(|socket| set_millis(&socket, RTO_MAX, BOUNDED_RETRY)) {
        Ok(()) => BOUNDED_RETRY,
        Err(_) => LONGEST_RETRY,
    }
}

/// Keeps the system from giving a connection up before `limit`, and has it find out soon that a
/// network is back: for connections that have heartbeats. `limit` must also cover a peer that is
/// alive but does not read, because the system ends a connection that could not send for that long.
/// What the system cannot do, it leaves as it is.
pub(crate) fn outlast(stream: &TcpStream, limit: Duration) {
    // With bounded pauses alone, the system would count repetitions and give up after 15 seconds.
    if set_millis(stream, USER_TIMEOUT, limit).is_ok() {
        _ = set_millis(stream, RTO_MAX, BOUNDED_RETRY);
    }
}

/// Sets an option of TCP that is a number of milliseconds.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "no crate has a safe call for RTO_MAX")]
fn set_millis(socket: &impl AsRawFd, option: libc::c_int, limit: Duration) -> std::io::Result<()> {
    let millis = libc::c_int::try_from(limit.as_millis()).unwrap_or(libc::c_int::MAX);
    let (value, size) = ((&raw const millis).cast(), size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the socket is open, and the system reads one number that lives until after the call.
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
    fn a_thread_that_accepts_is_woken() {
        let listener = listen_at(None, 0).unwrap();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept().is_err());
            std::thread::sleep(Duration::from_millis(50));
            wake(&listener);
            // Whether with an error or with a connection depends on the system.
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
