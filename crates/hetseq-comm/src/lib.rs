//! The group of ranks that train together: rank discovery, rendezvous, and collectives over plain
//! slices.
//!
//! Nothing here knows tensors, optimizers or checkpoints: the trainer passes `&mut [f32]` and
//! bytes. The members of a [`Group`] change only in [`Group::regroup`], which starts a new generation
//! without the ranks that were lost and drops frames of the old one, and in [`Group::admit`], which adds a newcomer. All calls on a group come from one thread, in the same
//! order on every rank.
//!
//! ```text
//! RankEnv::find -> Group::join -> measure_links -> all_reduce, broadcast, ... -> close or abort
//! rank_env/        rendezvous/    measure.rs       reduce/                       group.rs
//!
//! reduce/ runs over mesh.rs, which runs over the trait in transport.rs. stream/ implements it over
//! sockets: TCP connections, or socketpairs between threads. mpi/ implements it over MPI.
//! ```
//!
//! ```
//! use hetseq_comm::{Algorithm, CommError, Contribution, Group, Options, Shards, WireFormat};
//!
//! let groups = Group::local(2, &Options::default())?;
//! let sums: Vec<Vec<f32>> = std::thread::scope(|scope| {
//!     let ranks: Vec<_> = groups
//!         .into_iter()
//!         .map(|mut group| {
//!             scope.spawn(move || {
//!                 let gradients = vec![1.0 + group.rank() as f32; 5];
//!                 let shards = Shards::even(gradients.len(), group.world());
//!                 // Ready at once; a rank that still computes returns `None` until it is done.
//!                 let mut own = Some(Contribution::Both { note: Vec::new(), data: gradients });
//!                 let summed =
//!                     group.all_reduce(&shards, WireFormat::F32, Algorithm::Auto, || Ok(own.take()))?;
//!                 group.close();
//!                 Ok::<_, CommError>(summed.data)
//!             })
//!         })
//!         .collect();
//!     ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
//! });
//! assert_eq!(sums, vec![vec![3.0; 5]; 2]);
//! # Ok::<_, CommError>(())
//! ```

mod buffers;
mod checksum;
mod codec;
mod connection;
mod encryption;
mod error;
mod frame;
#[cfg(test)]
mod fuzz_files;
#[cfg(test)]
mod fuzz_frames;
#[cfg(test)]
mod fuzz_regroup;
mod group;
mod heartbeat_timing;
mod identity;
mod link_speeds;
mod lock;
mod measure;
mod membership_file;
mod mesh;
#[cfg(feature = "mpi")]
mod mpi;
mod options;
mod outgoing;
mod rank_env;
mod reduce;
mod regroup;
mod regrouping;
mod rendezvous;
mod secret;
mod secret_file;
mod shards;
mod signal;
mod socket;
mod stream;
mod transport;

pub use codec::WireFormat;
pub use error::{CommError, Phase, Rejections};
pub use frame::FrameError;
pub use group::{Group, Joining};
pub use identity::Identity;
pub use link_speeds::LinkSpeed;
pub use options::{Newcomers, Options, TransportKind};
pub use rank_env::{RankEnv, RankFlags, Rendezvous, unused_slurm_tasks};
pub use reduce::{Algorithm, Contribution, Summed};
pub use regrouping::{LostRank, RegroupRules, Regrouped};
pub use rendezvous::{Candidate, RunningGroup};
pub use secret::Secret;
pub use shards::Shards;
pub use signal::Waker;

/// Counts what fuzz tests allocate.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: hetseq_fuzz::CountingAllocator = hetseq_fuzz::CountingAllocator;
