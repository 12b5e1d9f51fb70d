//! One parallel pass of an element-wise rule over a range of the layout. Called by the optimizer's
//! step.

use rayon::prelude::*;

use super::runs::GroupRuns;

/// Elements per task: 128 KiB of each stream; four streams fit into a 1 MiB second-level cache.
/// Does not affect the result, which is computed per element.
const CHUNK: usize = 32 * 1024;

/// A pass over buffers that hold a range of the layout.
pub(super) struct Sweep<'a> {
    pub(super) runs: &'a GroupRuns,
    /// The element of the layout at which the buffers begin.
    pub(super) start: usize,
}

impl Sweep<'_> {
    /// Calls `kernel` with ranges of parameters, gradients and moments, and the scalars of their
    /// group; `scalars` comes from [`GroupRuns::scalars`]. Each call returns whether all values
    /// that it wrote are finite; this returns whether all are.
    pub(super) fn run<S: Sync, const N: usize>(
        &self,
        parameters: &mut [f32],
        gradients: &[f32],
        moments: [&mut [f32]; N],
        scalars: &[S],
        kernel: impl Fn(&mut [f32], &[f32], [&mut [f32]; N], &S) -> bool + Sync,
    ) -> bool {
        let mut moments = moments.map(|moment| moment.chunks_mut(CHUNK));
        let chunks = parameters.chunks_mut(CHUNK).zip(gradients.chunks(CHUNK)).enumerate();
        let chunks: Vec<_> = chunks
            .map(|(index, (p, g))| {
                let moments = moments.each_mut().map(|chunks| chunks.next().unwrap_or_default());
                (self.start + index * CHUNK, p, g, moments)
            })
            .collect();
        let step = |(start, p, g, mut moments): (usize, &mut [f32], &[f32], [&mut [f32]; N])| {
            let mut is_finite = true;
            for (at, group) in self.runs.within(start, p.len()) {
                let moments = moments.each_mut().map(|moment| &mut moment[at.clone()]);
                let (p, g) = (&mut p[at.clone()], &g[at]);
                is_finite &= if self.runs.has_zero_rate(group) {
                    // With a rate of 0 the kernel would turn some -0 into 0, and a parameter with
                    // an infinite gradient into NaN. A copy keeps this branch out of the kernels.
                    kernel(&mut p.to_vec(), g, moments, &scalars[group])
                } else {
                    kernel(p, g, moments, &scalars[group])
                };
            }
            is_finite
        };
        chunks.into_par_iter().map(step).reduce(|| true, |all, one| all & one)
    }
}
