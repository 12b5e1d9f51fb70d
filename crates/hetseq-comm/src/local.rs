//! The `local` engine: ranks are threads of one process, joined by lanes directly.
//!
//! For tests, demonstrations and several trainers in one process. There are no heartbeats: a thread
//! cannot vanish without dropping its group, which ends its lanes; one that hangs meets the no-progress
//! limit. Called by `Group::local`.

use std::sync::Arc;

use crate::lane::{Bell, Lane};
use crate::link::Link;
use crate::mesh::Mesh;
use crate::options::Options;

/// One mesh per rank, in rank order.
pub(crate) fn meshes(world: usize, options: &Options) -> Vec<Mesh> {
    let bells: Vec<Arc<Bell>> = (0..world).map(|_| Arc::default()).collect();
    let lane = |from: usize, to: usize| Lane::new(bells[from].clone(), bells[to].clone());
    // lanes[from][to]
    let lanes: Vec<Vec<Arc<Lane>>> = (0..world).map(|from| (0..world).map(|to| lane(from, to)).collect()).collect();
    let name = options.shown_name();
    let hosts: Vec<String> = (0..world).map(|_| name.clone()).collect();
    (0..world)
        .map(|rank| {
            let link = |peer: usize| {
                (peer != rank)
                    .then(|| Link::Lanes { outgoing: lanes[rank][peer].clone(), incoming: lanes[peer][rank].clone() })
            };
            let links = (0..world).map(link).collect();
            Mesh::new(rank, 0, hosts.clone(), links, bells[rank].clone(), options)
        })
        .collect()
}
