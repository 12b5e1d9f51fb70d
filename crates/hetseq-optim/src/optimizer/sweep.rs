//! One pass of an element-wise rule over a range of the layout, by all threads.

use rayon::prelude::*;

use super::decay::DecayMap;

/// Elements given to a thread at a time: 128 KiB of each stream, four of which fit a 1 MiB
/// second-level cache. It has no influence on the result, which is element by element.
const CHUNK: usize = 32 * 1024;

pub(super) struct Sweep<'a> {
    pub(super) decay: &'a DecayMap,
    /// The element of the layout that the buffers begin with.
    pub(super) start: usize,
}

impl Sweep<'_> {
    /// Calls `kernel` with stretches of parameters, gradients and moments, and whether they decay. It tells whether all it wrote
    /// is finite, and so does this.
    pub(super) fn run<const N: usize>(
        &self,
        parameters: &mut [f32],
        gradients: &[f32],
        moments: [&mut [f32]; N],
        kernel: impl Fn(&mut [f32], &[f32], [&mut [f32]; N], bool) -> bool + Sync,
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
            for (at, decays) in self.decay.within(start, p.len()) {
                let moments = moments.each_mut().map(|moment| &mut moment[at.clone()]);
                is_finite &= kernel(&mut p[at.clone()], &g[at], moments, decays);
            }
            is_finite
        };
        chunks.into_par_iter().map(step).reduce(|| true, |all, one| all & one)
    }
}
