//! The run that others are compared with: one rank with one device, undisturbed. Mostly
//! `configs/mnist.toml`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use crate::cluster::Job;
use crate::run_dir::RunDir;

/// One more than the last checkpoint to resume from.
const UPDATES: u64 = 61;

pub(crate) struct Reference {
    dir: RunDir,
    losses: BTreeMap<u64, f64>,
}

impl Reference {
    /// The shipped config, including dropout. Trained once per test process.
    pub(crate) fn shipped() -> &'static Reference {
        static SHIPPED: OnceLock<Reference> = OnceLock::new();
        SHIPPED.get_or_init(|| Reference::new(|job| job))
    }

    /// The shipped config with changes.
    pub(crate) fn new(vary: impl FnOnce(Job) -> Job) -> Reference {
        let dir = RunDir::new();
        let job = shipped(&dir, UPDATES).set("checkpoint.every", "20 updates").set("checkpoint.keep", 10);
        vary(job.set("debug.gradients", true)).succeed();
        Reference::of(dir, UPDATES)
    }

    /// A finished run of `updates` updates.
    pub(crate) fn of(dir: RunDir, updates: u64) -> Reference {
        let losses = dir.losses();
        assert!(losses.keys().copied().eq(1..=updates), "{losses:?}");
        Reference { dir, losses }
    }

    /// The checkpoint after update `from`.
    pub(crate) fn checkpoint(&self, from: u64) -> std::path::PathBuf {
        self.dir.checkpoint(&format!("step-{from}"))
    }

    /// Requires that the run in `dir` has updates 1 to `last` once each, with the losses of this
    /// run.
    pub(crate) fn assert_losses(&self, dir: &RunDir, last: u64, who: &str) {
        self.assert_losses_within(&[(1..=20, 1e-5), (21..=100, 1e-4)], dir, last, who);
    }

    /// Like [`Reference::assert_losses`], with relative tolerances for ranges of updates.
    pub(crate) fn assert_losses_within(
        &self,
        tolerances: &[(RangeInclusive<u64>, f64)],
        dir: &RunDir,
        last: u64,
        who: &str,
    ) {
        let losses = dir.losses();
        assert!(losses.keys().copied().eq(1..=last), "{who}: {losses:?}");
        let deviation = |(update, loss): (&u64, &f64)| (*update, (loss / self.losses[update] - 1.0).abs());
        let deviations: Vec<(u64, f64)> = losses.iter().map(deviation).collect();
        for (updates, tolerance) in tolerances {
            let part = deviations.iter().filter(|(update, _)| updates.contains(update));
            let Some((update, worst)) = part.max_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
            eprintln!("{who}: losses of updates {updates:?} deviate by up to {worst:.1e}");
            assert!(worst <= tolerance, "{who}: the loss of update {update} is off by {worst:e}");
        }
    }

    /// Requires that these updates have the losses of this run.
    pub(crate) fn assert_some_losses(&self, losses: &BTreeMap<u64, f64>, who: &str) {
        for (update, loss) in losses {
            let off = (loss / self.losses[update] - 1.0).abs();
            assert!(off <= 1e-4, "{who}: the loss of update {update} is off by {off:e}");
        }
    }

    /// Requires that the run in `dir` has the gradient of this run in `update`.
    pub(crate) fn assert_gradient(&self, dir: &RunDir, update: u64, who: &str) {
        let (found, expected) = (dir.gradient(update), self.dir.gradient(update));
        assert!(found.keys().eq(expected.keys()), "{who}");
        let (mut difference, mut length) = (0.0, 0.0);
        for (name, expected) in &expected {
            assert_eq!(found[name].len(), expected.len(), "{who}: {name}");
            for (found, expected) in found[name].iter().zip(expected) {
                difference += f64::from(found - expected).powi(2);
                length += f64::from(*expected).powi(2);
            }
        }
        let relative = (difference / length).sqrt();
        eprintln!("{who}: the gradient of update {update} deviates by {relative:.1e}");
        assert!(relative <= 2e-6, "{who}: the gradient of update {update} is off by {relative:e}");
    }
}

/// The shipped config for fewer updates. With this data its ten epochs are 150 updates; the
/// schedule keeps that length.
pub(crate) fn shipped(dir: &RunDir, updates: u64) -> Job {
    let job = Job::mnist("train", dir.path()).set("run.max_updates", updates);
    job.set("optim.schedule.total_updates", 150).set("run.checksum_every", 1)
}
