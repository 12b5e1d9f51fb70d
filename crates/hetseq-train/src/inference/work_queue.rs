//! A work queue for several workers, some of which may fail. Called by `generate.rs`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Computes each job of `work` on one of the `workers` and returns the results, in order of
/// completion.
///
/// `done` is called with every result and returns whether to continue. A worker that fails is
/// removed from the list and reported to `lost`; the others compute its job. It is an error only if
/// no worker is left.
pub(super) fn run_all<W: Send, J: Send, R: Send, E: Send>(
    workers: &mut Vec<W>,
    work: Vec<J>,
    compute: impl Fn(&mut W, &J) -> Result<R, E> + Sync,
    done: impl Fn(&R) -> bool + Sync,
    lost: impl Fn(&E),
) -> Result<Vec<R>, E> {
    let (queue, results) = (Mutex::new(VecDeque::from(work)), Mutex::new(Vec::new()));
    let is_stopped = AtomicBool::new(false);
    // Runs until the queue is empty or the worker fails.
    let run = |worker: &mut W| -> Result<(), E> {
        while !is_stopped.load(Ordering::Relaxed) {
            // A separate statement, so that the queue is not locked while the job is computed.
            let job = locked(&queue).pop_front();
            let Some(job) = job else { break };
            match compute(worker, &job) {
                Ok(result) => {
                    if !done(&result) {
                        is_stopped.store(true, Ordering::Relaxed);
                    }
                    locked(&results).push(result);
                }
                Err(error) => {
                    locked(&queue).push_front(job);
                    return Err(error);
                }
            }
        }
        Ok(())
    };
    let run = &run;
    loop {
        let ended: Vec<Result<(), E>> = std::thread::scope(|scope| {
            let threads: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(move || run(worker))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let mut has_failed = ended.iter().map(Result::is_err);
        workers.retain(|_| !has_failed.next().unwrap_or(false));
        for error in ended.into_iter().filter_map(Result::err) {
            if workers.is_empty() {
                return Err(error);
            }
            lost(&error);
        }
        // The other workers may have ended before the failed one returned its job.
        if is_stopped.load(Ordering::Relaxed) || locked(&queue).is_empty() {
            return Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn each_job_is_computed_once() {
        let mut results =
            run_all(&mut vec![(); 3], (0..100).collect(), |(), job| Ok::<_, ()>(job * 2), |_| true, |()| {});
        results.as_mut().unwrap().sort_unstable();
        assert_eq!(results, Ok((0..100).map(|job| job * 2).collect()));
    }

    /// One worker fails only after the other has emptied the queue.
    #[test]
    fn another_worker_computes_the_job_of_a_failed_one() {
        let (both_have_one, other_is_done) = (Barrier::new(2), Barrier::new(2));
        let (mut workers, losses) = (vec!["bad", "good"], Cell::new(0));
        let jobs_of_good = std::sync::atomic::AtomicUsize::new(0);
        let compute = |worker: &mut &str, job: &u32| {
            let before = if *worker == "good" { jobs_of_good.fetch_add(1, Ordering::Relaxed) } else { 0 };
            if before == 0 {
                both_have_one.wait();
                if *worker == "bad" {
                    other_is_done.wait();
                    return Err("out of order");
                }
                other_is_done.wait();
            }
            Ok(*job)
        };
        let results = run_all(&mut workers, vec![1, 2], compute, |_| true, |_| losses.set(losses.get() + 1));
        let mut results = results.unwrap();
        results.sort_unstable();
        assert_eq!((results, workers, losses.get()), (vec![1, 2], vec!["good"], 1));
    }

    #[test]
    fn no_worker_left_is_an_error() {
        let mut workers = vec![1, 2];
        let failed = run_all(&mut workers, vec!["job"; 5], |_, _| Err::<(), _>("broken"), |()| true, |_| {});
        assert_eq!((failed, workers.len()), (Err("broken"), 0));
    }

    #[test]
    fn done_can_stop_the_queue() {
        let results = run_all(&mut vec![()], (0..100).collect(), |(), job| Ok::<_, ()>(*job), |&job| job < 3, |()| {});
        assert_eq!(results, Ok(vec![0, 1, 2, 3]));
    }
}
