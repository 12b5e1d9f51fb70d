//! The group of ranks that trains together: finding one's place, meeting the others, and collectives over plain slices.
//!
//! Nothing here knows what a tensor, an optimizer or a checkpoint is: the trainer hands over `&mut [f32]` and bytes.
//! A [`Group`] is immutable; when its membership changes, that is a new group with a new generation, and frames of the
//! old one are refused. All calls on a group come from one thread, in the same order on every rank.
//!
//! ```text
//! Place::find -> Group::join -> measure_lines -> agree / all_reduce / all_reduce_late / broadcast ...  -> close or abort
//!  place.rs      rendezvous/    measure.rs       reduce/ over mesh.rs over link.rs (local.rs or tcp.rs)   group.rs
//! ```
//!
//! ```
//! use hetseq_comm::{Group, Options, Route, Shards, Wire};
//!
//! let groups = Group::local(2, &Options::default());
//! let sums: Vec<Vec<f32>> = std::thread::scope(|scope| {
//!     let ranks: Vec<_> = groups
//!         .into_iter()
//!         .map(|mut group| {
//!             scope.spawn(move || {
//!                 let mut gradients = vec![1.0 + group.rank() as f32; 5];
//!                 let shards = Shards::even(gradients.len(), group.world());
//!                 group.all_reduce(&mut gradients, &shards, Wire::F32, Route::Auto)?;
//!                 group.close();
//!                 Ok::<_, hetseq_comm::CommError>(gradients)
//!             })
//!         })
//!         .collect();
//!     ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
//! });
//! assert_eq!(sums, vec![vec![3.0; 5]; 2]);
//! ```

mod buffers;
mod codec;
mod connection;
mod error;
mod frame;
#[cfg(test)]
mod fuzz;
mod group;
mod heart;
mod identity;
mod lane;
mod lines;
mod link;
mod local;
mod measure;
mod mesh;
mod options;
mod outgoing;
mod pace;
mod place;
mod reduce;
mod rendezvous;
mod seal;
mod secret;
mod secret_file;
mod shards;
mod signal;
mod socket;
mod tcp;

pub use codec::Wire;
pub use error::{CommError, Moment};
pub use frame::FrameError;
pub use group::Group;
pub use identity::Identity;
pub use lines::Line;
pub use options::Options;
pub use place::{Place, PlaceFlags, Rendezvous};
pub use reduce::{Contribution, Route, Summed};
pub use secret::Secret;
pub use shards::Shards;
pub use signal::Waker;
