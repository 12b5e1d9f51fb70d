//! From files to shares: sources, the batch plan, who computes what, and the cursor.
//!
//! The modules follow the data. A [`source`] holds samples; a [`plan`] says which of them form update `k`;
//! [`share`](mod@share) says which device computes which of those, at the speeds that [`pace`] measured; [`augment`]
//! varies a sample on its way to the device; a [`cursor`] is all that resuming needs.
//!
//! Text takes a longer way: [`prep`] reads it, [`tokenize`] makes tokens of it, [`source`] keeps them in shards, and
//! [`pretrain`] makes samples of those, which [`mask`] hides parts of.
//!
//! Nothing here knows what a tensor, a network or a peer is. `plan`, `share` and `pace` do no I/O, read no clock and
//! draw no unkeyed random number: every rank calls them with the same arguments and gets the same bits, so that the
//! ranks never have to tell each other who does what.
//!
//! ```
//! use hetseq_data::{Costs, EpochPlan, GlobalBatch, Pace, PlanSpec, Split, share};
//!
//! let costs = Costs::PerSample(vec![12, 80, 31, 64, 7, 90, 55, 40]);
//! let spec = PlanSpec { seed: 1, batch: GlobalBatch::Sequences(4), curriculum_epochs: 0, shuffle: true };
//! let plan = EpochPlan::new(&costs, &spec, 0);
//! let loads = Pace::new(2).loads(Split::Weights, &[3.0, 1.0], &[(Some(256), None), (Some(128), None)]);
//!
//! let mut computed = Vec::new();
//! for k in 0..plan.updates() {
//!     let samples = plan.update(k).samples;
//!     let tokens: Vec<u32> = samples.iter().map(|&sample| costs.tokens(sample)).collect();
//!     for device in share(&tokens, &loads)? {
//!         for micro in device.micro {
//!             computed.extend_from_slice(&samples[micro]);
//!         }
//!     }
//! }
//! computed.sort_unstable();
//! assert_eq!(computed, [0, 1, 2, 3, 4, 5, 6, 7]);
//! # Ok::<(), hetseq_data::DataError>(())
//! ```

pub mod augment;
pub mod cursor;
pub mod error;
pub mod mask;
pub mod pace;
pub mod plan;
pub mod prep;
pub mod pretrain;
pub mod share;
pub mod source;
pub mod tokenize;

pub use augment::Augment;
pub use augment::resample::{Normal, resample};
pub use augment::view::{Crop, View};
pub use cursor::Cursor;
pub use error::DataError;
pub use mask::Masking;
pub use pace::{Pace, Split};
pub use plan::{Costs, EpochPlan, GlobalBatch, Padding, PlanSpec, Update};
pub use pretrain::{PretrainBatch, PretrainConfig, PretrainData};
pub use share::{DeviceLoad, Share, share};
pub use source::corpus::CorpusSplit;
pub use source::picture::Picture;
pub use source::{Images, LabelledImages};
