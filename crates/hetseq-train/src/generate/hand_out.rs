//! Work for whoever is free, as long as anybody is left to do it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Has each of `work` computed by one of the `workers`, until `done`, which sees every result, says that it is enough. A worker that
/// fails is taken off the list, and what it had goes to the others, with a word to `lost`; it is an error only if nobody is left.
pub(super) fn hand_out<W: Send, J: Send, R: Send, E: Send>(
    workers: &mut Vec<W>,
    work: Vec<J>,
    compute: impl Fn(&mut W, &J) -> Result<R, E> + Sync,
    done: impl Fn(&R) -> bool + Sync,
    lost: impl Fn(&E),
) -> Result<Vec<R>, E> {
    let (queue, results) = (Mutex::new(VecDeque::from(work)), Mutex::new(Vec::new()));
    let is_enough = AtomicBool::new(false);
    // Until it has nothing more to do, or has failed.
    let run = |worker: &mut W| -> Result<(), E> {
        while !is_enough.load(Ordering::Relaxed) {
            // By itself, so that the queue is not held while the job is computed.
            let job = locked(&queue).pop_front();
            let Some(job) = job else { break };
            match compute(worker, &job) {
                Ok(result) => {
                    if !done(&result) {
                        is_enough.store(true, Ordering::Relaxed);
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
        // Others may have ended before the work of one that failed came back.
        if is_enough.load(Ordering::Relaxed) || locked(&queue).is_empty() {
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
    fn each_is_done_once() {
        let mut results =
            hand_out(&mut vec![(); 3], (0..100).collect(), |(), job| Ok::<_, ()>(job * 2), |_| true, |()| {});
        results.as_mut().unwrap().sort_unstable();
        assert_eq!(results, Ok((0..100).map(|job| job * 2).collect()));
    }

    /// The one that fails does so only when the other has nothing left to do.
    #[test]
    fn what_one_fails_at_another_does() {
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
        let results = hand_out(&mut workers, vec![1, 2], compute, |_| true, |_| losses.set(losses.get() + 1));
        let mut results = results.unwrap();
        results.sort_unstable();
        assert_eq!((results, workers, losses.get()), (vec![1, 2], vec!["good"], 1));
    }

    #[test]
    fn nobody_left_is_an_error() {
        let mut workers = vec![1, 2];
        let failed = hand_out(&mut workers, vec!["job"; 5], |_, _| Err::<(), _>("broken"), |()| true, |_| {});
        assert_eq!((failed, workers.len()), (Err("broken"), 0));
    }

    #[test]
    fn enough_is_enough() {
        let results = hand_out(&mut vec![()], (0..100).collect(), |(), job| Ok::<_, ()>(*job), |&job| job < 3, |()| {});
        assert_eq!(results, Ok(vec![0, 1, 2, 3]));
    }
}
