//! Two ranks in network namespaces whose link drops every packet for a while. Needs root and `ip`
//! (iproute2), so these tests are ignored by default; `./test` runs them where it can.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use hetseq_comm::{Algorithm, Group, Shards, WireFormat};

use crate::network::Network;
use crate::ranks::all_reduce;

const PROGRESS: Duration = Duration::from_secs(60);

/// Runs `body` on two ranks and cuts the network after a second, for `outage`. `body` also gets
/// whether the network is back.
fn run_with_outage(outage: Duration, silence: Duration, body: impl Fn(Group, &AtomicBool) + Sync) {
    let (network, is_back) = (Network::new(2), AtomicBool::new(false));
    let cut = || {
        sleep(Duration::from_secs(1));
        network.cut(0, 1);
        sleep(outage);
        network.heal();
        is_back.store(true, Ordering::Release);
    };
    network.ranks((silence, PROGRESS), cut, |group| body(group, &is_back));
}

#[test]
#[ignore = "needs root and iproute2"]
fn a_short_outage_is_survived_while_gradients_travel() {
    run_with_outage(Duration::from_millis(4_500), Duration::from_secs(5), |mut group, is_back| {
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
    run_with_outage(Duration::from_secs(16), Duration::from_secs(18), |mut group, is_back| {
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
    let network = Network::new(2);
    let cut = || {
        sleep(Duration::from_secs(1));
        network.cut(0, 1);
    };
    let errors = network.ranks((Duration::from_secs(2), PROGRESS), cut, |mut group| {
        while group.barrier().is_ok() {}
        group.barrier().unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("sent nothing for"), "{error}");
    }
}
