//! The memory of sums: this rank's contribution, which outlives the sum, and the result. Owned by
//! `Group`, which lends it to `all_reduce.rs`.

use std::ops::Range;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct SumBuffers {
    /// This rank's values of the last sum, also of one that failed. Frames on their way share them.
    pub(crate) own: Option<Arc<Vec<f32>>>,
    /// The result, while a sum is under way; before that, memory for it.
    pub(super) sum: Vec<f32>,
}

impl SumBuffers {
    /// Before the next sum: the old contribution is memory for its result.
    pub(super) fn recycle(&mut self) {
        if let Some(own) = self.own.take().and_then(Arc::into_inner) {
            self.sum = own;
        }
    }

    /// A range of the contribution, and of the sum.
    pub(super) fn both(&mut self, range: &Range<usize>) -> (&[f32], &mut [f32]) {
        let own = self.own.as_ref().map_or(&[][..], |own| own);
        (&own[range.clone()], &mut self.sum[range.clone()])
    }

    pub(super) fn take_sum(&mut self) -> Vec<f32> {
        std::mem::take(&mut self.sum)
    }
}
