//! Parsing of `tcp://host:port` and `file:///dir`, of hosts and ports, and a port derived from a
//! job's name.
//!
//! Pure text. The errors are the reason only; `rank_env/mod.rs` adds which flag or variable it was.

use super::Rendezvous;

/// Parses `tcp://host:port`, `tcp://[v6]:port` or `file:///shared/dir`.
pub(super) fn rendezvous(method: &str) -> Result<Rendezvous, String> {
    let method = method.trim();
    let Some((scheme, rest)) = method.split_once("://") else {
        return Err("it has no scheme; write tcp://host:port or file:///shared/dir".to_owned());
    };
    match scheme {
        "tcp" => {}
        "file" => return directory(rest),
        other => return Err(format!("the scheme {other}:// is unknown; write tcp://host:port or file:///shared/dir")),
    }
    let no_port = || "it has no port; write tcp://host:port".to_owned();
    let (name, digits) = match rest.strip_prefix('[') {
        Some(inner) => {
            let (name, after) = inner.split_once(']').ok_or("the bracket is not closed")?;
            (format!("[{name}]"), after.strip_prefix(':').ok_or_else(no_port)?)
        }
        None => {
            let (name, digits) = rest.rsplit_once(':').ok_or_else(no_port)?;
            if name.contains(':') {
                return Err("write an IPv6 address in brackets: tcp://[::1]:2900".to_owned());
            }
            (name.to_owned(), digits)
        }
    };
    Ok(Rendezvous::Tcp { host: host(&name)?, port: port(digits)? })
}

/// Rejects a relative path: it would mean another directory in another working directory.
fn directory(path: &str) -> Result<Rendezvous, String> {
    if !path.starts_with('/') || path == "/" {
        return Err("write an absolute path to a directory that all ranks share: file:///shared/dir".to_owned());
    }
    Ok(Rendezvous::Directory(path.into()))
}

/// Parses a host name or address, IPv6 with or without brackets; returns it without.
pub(super) fn host(text: &str) -> Result<String, String> {
    let bare = match text.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or("the bracket is not closed")?,
        None => text,
    };
    if bare.is_empty() {
        return Err("the host is empty".to_owned());
    }
    let is_v6 = bare.parse::<std::net::Ipv6Addr>().is_ok();
    if text.starts_with('[') && !is_v6 {
        return Err(format!("{bare:?} is not an IPv6 address"));
    }
    if !is_v6 && bare.contains(|c: char| c.is_whitespace() || "/:?#@[]".contains(c)) {
        return Err(format!("{bare:?} is not a host name or address"));
    }
    Ok(bare.to_owned())
}

/// Rejects port 0, which would be a different port on every machine.
pub(super) fn port(text: &str) -> Result<u16, String> {
    match text.parse::<u16>() {
        Ok(0) | Err(_) => Err(format!("{text:?} is not a port between 1 and 65535")),
        Ok(port) => Ok(port),
    }
}

/// Returns a port that is the same on all ranks of a job and most likely another one for another
/// job. Between 15,000 and 29,999: above the services, below the ephemeral ports (from 32,768 on).
pub(super) fn port_of_job(job: &str) -> u16 {
    let hash = blake3::hash(job.as_bytes());
    let number = u32::from_le_bytes(std::array::from_fn(|i| hash.as_bytes()[i]));
    15_000 + (number % 15_000) as u16
}
