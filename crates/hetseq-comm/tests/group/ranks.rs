//! Ranks as threads of the test, over TCP or socketpairs.

use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use hetseq_comm::{
    Algorithm, CommError, Contribution, Group, Identity, Options, RankEnv, Rendezvous, Secret, Shards, WireFormat,
};

/// How the ranks of a group under test are connected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Transport {
    /// By socketpairs.
    Local,
    Tcp,
    /// Like `Tcp`, but encrypted.
    Encrypted,
}

pub(crate) const TRANSPORTS: [Transport; 3] = [Transport::Local, Transport::Tcp, Transport::Encrypted];
/// For long tests: results cannot differ between `Encrypted` and `Tcp`.
pub(crate) const PLAIN_TRANSPORTS: [Transport; 2] = [Transport::Local, Transport::Tcp];

/// The address of ranks over TCP.
pub(crate) const HERE: &str = "127.0.0.1";

/// Returns a free port below the ephemeral range, so that no connection of another test can take it
/// in the meantime.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = (10_000 + (std::process::id() * 101 + step) % 20_000) as u16;
        let free = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
        if free.or_else(|_| TcpListener::bind(("0.0.0.0", port))).is_ok() {
            return port;
        }
    }
}

/// Connects to `port` as soon as a process listens there.
pub(crate) fn connect(port: u16) -> TcpStream {
    loop {
        match TcpStream::connect((HERE, port)) {
            Ok(stream) => break stream,
            Err(_) => sleep(Duration::from_millis(10)),
        }
    }
}

pub(crate) fn rank_env(rank: usize, world: usize, host: &str, port: u16) -> RankEnv {
    let rendezvous = Rendezvous::Tcp { host: host.to_owned(), port };
    RankEnv { rank: Some(rank), world, rendezvous, source: "the test" }
}

/// Options with limits that a healthy test never reaches.
pub(crate) fn options(rank: usize) -> Options {
    Options {
        silence: Duration::from_secs(10),
        progress: Duration::from_secs(10),
        join: Duration::from_secs(10),
        name: Some(format!("host{rank}")),
        ..Options::default()
    }
}

/// A rank that joins in its own thread.
pub(crate) type Joining = JoinHandle<Result<Group, CommError>>;

pub(crate) fn join(rank_env: RankEnv, options: Options) -> Joining {
    join_as(rank_env, Identity::new(), options)
}

pub(crate) fn join_as(rank_env: RankEnv, identity: Identity, options: Options) -> Joining {
    spawn(move || Group::join(&rank_env, &identity, &options))
}

/// Waits until all of `ranks` have joined.
pub(crate) fn wait_all(ranks: impl IntoIterator<Item = Joining>) -> Vec<Group> {
    ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
}

/// Creates a whole group, in rank order.
pub(crate) fn groups(transport: Transport, world: usize, options: impl Fn(usize) -> Options) -> Vec<Group> {
    match transport {
        Transport::Local => Group::local(world, &options(0)).unwrap(),
        Transport::Tcp | Transport::Encrypted => {
            let port = free_port();
            let encrypted = |options| Options {
                encrypt: true,
                secret: Secret::Given("squirrel-of-the-park".to_owned()),
                ..options
            };
            let options =
                |rank| if transport == Transport::Encrypted { encrypted(options(rank)) } else { options(rank) };
            let ranks: Vec<_> = (0..world).map(|rank| join(rank_env(rank, world, HERE, port), options(rank))).collect();
            wait_all(ranks)
        }
    }
}

/// Runs `body` on every rank at the same time; returns the results in rank order.
pub(crate) fn on_each<T: Send>(groups: Vec<Group>, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || body(group))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Sums values that are ready, without a note.
pub(crate) fn all_reduce(
    group: &mut Group,
    data: Vec<f32>,
    shards: &Shards,
    (wire_format, algorithm): (WireFormat, Algorithm),
) -> Result<Vec<f32>, CommError> {
    let mut contribution = Some(Contribution::Both { note: Vec::new(), data });
    Ok(group.all_reduce::<CommError>(shards, wire_format, algorithm, || Ok(contribution.take()))?.data)
}
