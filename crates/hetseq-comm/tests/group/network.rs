//! Ranks in network namespaces of their own, connected pairwise by virtual cables that can be cut
//! in each direction. Needs root and `ip` (iproute2). Used by `outage.rs` and `partition.rs`.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::scope;
use std::time::Duration;

use hetseq_comm::{Group, Identity, Options};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::ranks::{options, rank_env};

/// One network namespace per rank, removed when dropped.
pub(crate) struct Network {
    names: Vec<String>,
}

impl Network {
    pub(crate) fn new(world: usize) -> Network {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("hetseq-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let network = Network { names: (0..world).map(|rank| format!("{id}-{rank}")).collect() };
        network.names.iter().for_each(|name| ip(&["netns", "add", name]));
        for (a, b) in network.pairs() {
            let (device, far_device) = (device_to(b), device_to(a));
            let far = ["peer", "name", &far_device, "netns", &network.names[b]];
            ip(&[&["-n", &network.names[a], "link", "add", &device, "type", "veth"][..], &far].concat());
            network.configure(a, b);
            network.configure(b, a);
        }
        network.heal();
        network
    }

    fn configure(&self, rank: usize, peer: usize) {
        let (name, device) = (&self.names[rank], device_to(peer));
        ip(&["-n", name, "link", "set", &device, "address", &mac(rank)]);
        ip(&["-n", name, "address", "add", &address(rank), "peer", &address(peer), "dev", &device]);
        ip(&["-n", name, "link", "set", &device, "up"]);
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let world = self.names.len();
        (0..world).flat_map(move |a| (a + 1..world).map(move |b| (a, b)))
    }

    /// Drops every packet from `from` to `to`: they are sent, but the other end ignores them
    /// because they are addressed to another machine.
    pub(crate) fn block(&self, from: usize, to: usize) {
        self.send_to(from, to, &mac(200));
    }

    /// Drops every packet between these ranks.
    pub(crate) fn cut(&self, a: usize, b: usize) {
        self.block(a, b);
        self.block(b, a);
    }

    /// Cuts all cables between ranks that are not in the same part.
    pub(crate) fn split(&self, parts: &[&[usize]]) {
        let part_of = |rank: usize| parts.iter().position(|part| part.contains(&rank));
        self.pairs().filter(|&(a, b)| part_of(a) != part_of(b)).for_each(|(a, b)| self.cut(a, b));
    }

    /// Lets all packets pass again.
    pub(crate) fn heal(&self) {
        for (a, b) in self.pairs() {
            self.send_to(a, b, &mac(b));
            self.send_to(b, a, &mac(a));
        }
    }

    fn send_to(&self, from: usize, to: usize, mac: &str) {
        let name = &self.names[from];
        let neighbour = ["lladdr", mac, "dev", &device_to(to), "nud", "permanent"];
        ip(&[&["-n", name, "neigh", "replace", &address(to)][..], &neighbour].concat());
    }

    /// Runs each rank in its namespace, and `events` in parallel. Returns the results in rank
    /// order.
    pub(crate) fn ranks<T: Send>(
        &self,
        (silence, progress): (Duration, Duration),
        events: impl FnOnce() + Send,
        body: impl Fn(Group) -> T + Sync,
    ) -> Vec<T> {
        let world = self.names.len();
        let run = |rank: usize| {
            let namespace = File::open(format!("/run/netns/{}", self.names[rank])).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let options = Options { silence, progress, ..options(rank) };
            body(Group::join(&rank_env(rank, world, &address(0), 2900), &Identity::new(), &options).unwrap())
        };
        let run = &run;
        scope(|scope| {
            let ranks: Vec<_> = (0..world).map(|rank| scope.spawn(move || run(rank))).collect();
            scope.spawn(events);
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| ip(&["netns", "delete", name]));
    }
}

fn address(rank: usize) -> String {
    format!("10.77.0.{}", rank + 1)
}

fn device_to(peer: usize) -> String {
    format!("to-{peer}")
}

fn mac(machine: usize) -> String {
    format!("02:00:00:00:00:{machine:02x}")
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
}
