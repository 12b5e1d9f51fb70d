//! The `local` transport: ranks are threads of one process, connected by channels.
//!
//! For tests, demonstrations and several trainers in one process. There are no heartbeats: a thread
//! cannot disappear without dropping its group, which ends its channels, and one that hangs reaches
//! the progress limit. Called by `Group::local`.

use std::sync::Arc;

use crate::link::Link;
use crate::local_channel::{LocalChannel, Notify};
use crate::mesh::Mesh;
use crate::options::Options;

/// Creates one mesh per rank, in rank order.
pub(crate) fn meshes(world: usize, options: &Options) -> Vec<Mesh> {
    let notifies: Vec<Arc<Notify>> = (0..world).map(|_| Arc::default()).collect();
    let channel = |from: usize, to: usize| LocalChannel::new(notifies[from].clone(), notifies[to].clone());
    // Indexed by sender, then receiver.
    let channels: Vec<Vec<Arc<LocalChannel>>> =
        (0..world).map(|from| (0..world).map(|to| channel(from, to)).collect()).collect();
    let name = options.shown_name();
    let hosts: Vec<String> = (0..world).map(|_| name.clone()).collect();
    (0..world)
        .map(|rank| {
            let link = |peer: usize| {
                (peer != rank).then(|| Link::Local {
                    outgoing: channels[rank][peer].clone(),
                    incoming: channels[peer][rank].clone(),
                })
            };
            let links = (0..world).map(link).collect();
            Mesh::new(rank, 0, hosts.clone(), links, notifies[rank].clone(), options)
        })
        .collect()
}
