//! Ranks as threads of the test, over either engine.

use std::net::{Ipv6Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use hetseq_comm::{CommError, Group, Identity, Options, Place, Rendezvous, Secret};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Engine {
    Local,
    Tcp,
    /// As `Tcp`, encrypted.
    Sealed,
}

pub(crate) const ENGINES: [Engine; 3] = [Engine::Local, Engine::Tcp, Engine::Sealed];
/// For what is long: in what it computes `Sealed` cannot differ from `Tcp`.
pub(crate) const CLEAR_ENGINES: [Engine; 2] = [Engine::Local, Engine::Tcp];

/// A port that nobody listens on, below the range from which the system takes ports for outgoing
/// connections, so that no other test's connection can take it meanwhile.
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

pub(crate) fn place(rank: usize, world: usize, host: &str, port: u16) -> Place {
    let rendezvous = Rendezvous::Tcp { host: host.to_owned(), port };
    Place { rank: Some(rank), world, rendezvous, source: "the test" }
}

/// Options with limits that a healthy test never meets.
pub(crate) fn options(rank: usize) -> Options {
    Options {
        silence: Duration::from_secs(10),
        progress: Duration::from_secs(10),
        join: Duration::from_secs(10),
        name: Some(format!("host{rank}")),
        ..Options::default()
    }
}

/// Joins in a thread of its own.
pub(crate) fn join(place: Place, options: Options) -> JoinHandle<Result<Group, CommError>> {
    join_as(place, Identity::new(), options)
}

pub(crate) fn join_as(place: Place, identity: Identity, options: Options) -> JoinHandle<Result<Group, CommError>> {
    spawn(move || Group::join(&place, &identity, &options))
}

/// A whole group, in rank order.
pub(crate) fn groups(engine: Engine, world: usize, options: impl Fn(usize) -> Options) -> Vec<Group> {
    match engine {
        Engine::Local => Group::local(world, &options(0)),
        Engine::Tcp | Engine::Sealed => {
            let port = free_port();
            let encrypted = |options| Options {
                encrypt: true,
                secret: Secret::Given("squirrel-of-the-park".to_owned()),
                ..options
            };
            let options = |rank| if engine == Engine::Sealed { encrypted(options(rank)) } else { options(rank) };
            let ranks: Vec<_> =
                (0..world).map(|rank| join(place(rank, world, "127.0.0.1", port), options(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
        }
    }
}

/// Runs `body` on every rank at the same time; results in rank order.
pub(crate) fn on_each<T: Send>(groups: Vec<Group>, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || body(group))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
