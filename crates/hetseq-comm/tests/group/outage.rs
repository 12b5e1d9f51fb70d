//! Ranks in network namespaces whose link drops every packet for a while. Needs root and `ip`
//! (iproute2), so these tests are ignored by default; `./test` runs them where it can.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use hetseq_comm::{Algorithm, Group, Identity, Options, Shards, WireFormat};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::ranks::{all_reduce, options, rank_env};

const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// Two network namespaces connected by a virtual cable, removed when dropped.
struct Cable {
    names: [String; 2],
}

impl Cable {
    fn new() -> Cable {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("hetseq-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let cable = Cable { names: [0, 1].map(|end| format!("{id}-{end}")) };
        let [near, far] = &cable.names;
        ip(&["netns", "add", near]);
        ip(&["netns", "add", far]);
        ip(&["-n", near, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", far]);
        for (end, name) in cable.names.iter().enumerate() {
            ip(&["-n", name, "link", "set", "cable", "address", &mac(end)]);
            ip(&["-n", name, "address", "add", &format!("{}/24", ADDRESSES[end]), "dev", "cable"]);
            ip(&["-n", name, "link", "set", "cable", "up"]);
        }
        cable.reconnect();
        cable
    }

    /// Cuts the cable for `outage`.
    fn fail_for(&self, outage: Duration) {
        self.cut();
        sleep(outage);
        self.reconnect();
    }

    /// Packets are sent, but the other end drops them because they are addressed to another
    /// machine.
    fn cut(&self) {
        self.send_to([7, 8]);
    }

    fn reconnect(&self) {
        self.send_to([1, 0]);
    }

    fn send_to(&self, ends: [usize; 2]) {
        for (end, name) in self.names.iter().enumerate() {
            let to = ["lladdr", &mac(ends[end]), "dev", "cable", "nud", "permanent"];
            ip(&[&["-n", name, "neigh", "replace", ADDRESSES[1 - end]][..], &to].concat());
        }
    }

    /// Runs one rank at each end, and `events` in parallel.
    fn ranks<T: Send>(
        &self,
        silence: Duration,
        events: impl FnOnce() + Send,
        rank: impl Fn(Group) -> T + Sync,
    ) -> Vec<T> {
        let at_end = |end: usize| {
            let namespace = File::open(format!("/run/netns/{}", self.names[end])).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let options = Options { silence, progress: Duration::from_secs(60), ..options(end) };
            rank(Group::join(&rank_env(end, 2, ADDRESSES[0], 2900), &Identity::new(), &options).unwrap())
        };
        let at_end = &at_end;
        scope(|scope| {
            let ranks = [0, 1].map(|end| scope.spawn(move || at_end(end)));
            scope.spawn(events);
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| ip(&["netns", "delete", name]));
    }
}

fn mac(end: usize) -> String {
    format!("02:00:00:00:00:{end:02x}")
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "needs root and iproute2"]
fn a_short_outage_is_survived_while_gradients_travel() {
    let (cable, is_back) = (Cable::new(), AtomicBool::new(false));
    let outage = || {
        sleep(Duration::from_secs(1));
        cable.fail_for(Duration::from_millis(4_500));
        is_back.store(true, Ordering::Release);
    };
    cable.ranks(Duration::from_secs(5), outage, |mut group| {
        let mut gradients = vec![1.0; 4 << 20];
        let shards = Shards::even(gradients.len(), 2);
        let mut is_last = false;
        while !is_last {
            is_last = group.all_gather_bytes(&[u8::from(is_back.load(Ordering::Acquire))]).unwrap()[0] == [1];
            gradients = all_reduce(&mut group, gradients, &shards, (WireFormat::F32, Algorithm::Auto)).unwrap();
        }
        group.close();
    });
}

#[test]
#[ignore = "needs root and iproute2"]
fn a_longer_outage_is_survived_while_a_rank_computes() {
    let (cable, is_back) = (Cable::new(), AtomicBool::new(false));
    let outage = || {
        sleep(Duration::from_secs(1));
        cable.fail_for(Duration::from_secs(16));
        is_back.store(true, Ordering::Release);
    };
    cable.ranks(Duration::from_secs(18), outage, |mut group| {
        while group.rank() == 1 && !is_back.load(Ordering::Acquire) {
            sleep(Duration::from_millis(100));
        }
        group.barrier().unwrap();
        group.close();
    });
}

#[test]
#[ignore = "needs root and iproute2"]
fn a_peer_behind_a_dead_link_is_given_up() {
    let cable = Cable::new();
    let cut = || {
        sleep(Duration::from_secs(1));
        cable.cut();
    };
    let errors = cable.ranks(Duration::from_secs(2), cut, |mut group| {
        while group.barrier().is_ok() {}
        group.barrier().unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("sent nothing for"), "{error}");
    }
}
