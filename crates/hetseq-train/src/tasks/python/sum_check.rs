//! Checks before training that a Python task's loss is a sum over independent samples: the loss of
//! two samples together must be the sum of their losses. A mean, or a layer that mixes samples,
//! would make the result depend on how micro-batches are cut.

use std::sync::Arc;

use hetseq_random::Key;

use crate::data::loader::{self, MicroBatch};
use crate::error::TrainError;
use crate::task::{OpenedTask, Split};
use crate::trainer::session::Session;

/// Losses of two samples may differ by this much of their size, such as by padding.
const TOLERANCE: f64 = 1e-3;

/// Called by `run.rs` once the devices are ready. Does nothing for other tasks.
pub(crate) fn check_sums(session: &mut Session) -> Result<(), TrainError> {
    let task = session.task.clone();
    let samples = task.data.lengths(Split::Train);
    if &*task.name != super::NAME || samples.samples() < 2 {
        return Ok(());
    }
    let mut losses = |ids: &[u32]| -> Result<Vec<f64>, TrainError> {
        let longest = ids.iter().map(|&id| samples.padded(id)).max().unwrap_or(1);
        let micro = MicroBatch { samples: ids.to_vec(), longest };
        let key = Key::root(0);
        let collated = loader::collate(&task, Split::Train, micro, key).map_err(|reason| task.collate_error(reason))?;
        let mut jobs = vec![Vec::new(); session.devices.names().count()];
        jobs[0].push(Arc::new(collated.job));
        let results = session.devices.evaluate(jobs)?;
        Ok(results.into_iter().next().map(|(totals, _)| totals.losses).unwrap_or_default())
    };
    let (first, second, both) = (losses(&[0])?, losses(&[1])?, losses(&[0, 1])?);
    let terms = task.data.terms();
    for (((term, first), second), both) in terms.iter().zip(first).zip(second).zip(both) {
        judge(&task, &term.name, first, second, both)?;
    }
    Ok(())
}

fn judge(task: &OpenedTask, term: &str, first: f64, second: f64, both: f64) -> Result<(), TrainError> {
    let (sum, size) = (first + second, first.abs() + second.abs());
    let is_near = |value: f64| (both - value).abs() <= TOLERANCE * size + 1e-6;
    // A loss of zero or NaN shows nothing.
    if !size.is_finite() || size <= 1e-6 || is_near(sum) {
        return Ok(());
    }
    if is_near(sum / 2.0) {
        return Err(task.error(format!(
            "the loss `{term}` is a mean: samples 0 and 1 have losses {first:.6} and {second:.6}, but together {both:.6}. \
             Return the sum, such as with reduction=\"sum\"; HetSeq divides by the counts of the whole update"
        )));
    }
    tracing::warn!(
        "the loss `{term}` of samples 0 and 1 is {both:.6} together, but {first:.6} and {second:.6} alone: the model or loss \
         mixes samples, so results depend on how batches are split. See docs/pytorch.md"
    );
    Ok(())
}
