//! Tests of the loader with a task whose samples are slow or broken.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use burn::tensor::Device;
use hetseq_data::SampleLengths;
use hetseq_models::layers::Linear;

use super::*;
use crate::task::{ForwardContext, StepOutput};

/// A batch is its samples. Sample 13 cannot be read, 40 to 49 are errors, 50 panics, 60 hangs.
#[derive(Default)]
struct Reader {
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
}

#[derive(burn::module::Module, Debug)]
struct Nothing {
    layer: Linear,
}

impl hetseq_models::Network for Nothing {}

impl Task for Reader {
    const NAME: &'static str = "reader";
    type Config = ();
    type Model = Nothing;
    type Batch = Vec<u32>;

    fn open((): &()) -> Result<Self, TaskError> {
        Ok(Reader::default())
    }

    fn fingerprint(&self) -> String {
        String::new()
    }

    fn lengths(&self, _: Split) -> SampleLengths {
        SampleLengths::Uniform { samples: 100, tokens: 1 }
    }

    fn model(&self, device: &Device) -> Nothing {
        Nothing { layer: Linear::new(1, 1, device) }
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<Vec<u32>, TaskError> {
        let read = |&id: &u32| {
            let now = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_at_once.fetch_max(now, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(if id == 60 { 60_000 } else { 5 }));
            self.at_once.fetch_sub(1, Ordering::SeqCst);
            match id {
                13 => samples.skip(id, "13.png is torn"),
                40..50 => return Err(TaskError::Other(format!("sample {id}"))),
                50 => panic!("sample 50"),
                _ => {}
            }
            Ok(id)
        };
        let read: Vec<Result<u32, TaskError>> = samples.ids.par_iter().map(read).collect();
        read.into_iter().collect()
    }

    fn counts(&self, batch: &Vec<u32>) -> Vec<u64> {
        vec![batch.iter().filter(|&&id| id != 13).count() as u64]
    }

    fn forward(&self, _: &Nothing, _: &Vec<u32>, _: &ForwardContext) -> StepOutput {
        StepOutput { losses: Vec::new(), scores: Vec::new() }
    }
}

fn loader(threads: usize, timeout: Duration) -> (Arc<Reader>, Loader<Reader>) {
    let task = Arc::new(Reader::default());
    let pool = pool(Some(threads), &[], NonZeroUsize::MIN).unwrap();
    let loader = Loader::start(&task, 1, &pool, timeout, None).unwrap();
    (task, loader)
}

fn request(loader: &Loader<Reader>, devices: Vec<Vec<Vec<u32>>>) {
    let micro = |samples| MicroBatch { samples, longest: 1 };
    let devices = devices.into_iter().map(|batches| batches.into_iter().map(micro).collect()).collect();
    loader.request(LoadRequest { split: Split::Train, epoch: 0, devices }).unwrap();
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn all_threads_work_and_results_keep_their_order() {
    let (task, loader) = loader(4, LONG);
    let requests = [vec![vec![vec![9, 8, 7], vec![6]], vec![vec![5, 4]]], vec![vec![], vec![vec![3, 2, 1, 0]]]];
    for devices in &requests {
        request(&loader, devices.clone());
    }
    for devices in requests {
        let loaded = loader.take().unwrap();
        let samples = devices.iter().flatten().flatten().count() as u64;
        assert_eq!((loaded.samples, loaded.counts), (samples, vec![samples]));
        let found: Vec<Vec<Vec<u32>>> = loaded
            .devices
            .into_iter()
            .map(|jobs| {
                let batch = |job: Job<Reader>| {
                    assert_eq!(job.batch, job.micro.samples);
                    job.batch
                };
                jobs.into_iter().map(batch).collect()
            })
            .collect();
        assert_eq!(found, devices);
    }
    assert_eq!(task.most_at_once.load(Ordering::SeqCst), 4);
}

#[test]
fn an_unreadable_sample_is_loaded_but_not_counted() {
    let (_, loader) = loader(2, LONG);
    request(&loader, vec![vec![vec![12, 13, 14]]]);
    let loaded = loader.take().unwrap();
    assert_eq!((loaded.samples, loaded.counts), (3, vec![2]));
    assert_eq!(loaded.skipped, [SkippedSample { sample: 13, reason: "13.png is torn".to_owned() }]);
}

#[test]
fn the_first_of_several_errors_is_reported_after_earlier_results() {
    let (_, loader) = loader(4, LONG);
    request(&loader, vec![vec![vec![1]]]);
    request(&loader, vec![vec![vec![2, 41], vec![42]], vec![vec![43]]]);
    assert!(loader.take().is_ok());
    let error = loader.take().err().unwrap().to_string();
    assert_eq!(error, "task reader, collating a micro-batch: sample 41");
}

#[test]
fn a_panic_in_a_task_is_an_error() {
    let (_, loader) = loader(2, LONG);
    request(&loader, vec![vec![vec![1, 50]]]);
    let error = loader.take().err().unwrap().to_string();
    assert_eq!(error, "the loader failed while collating: the task's collate panicked (see above)");
}

#[test]
fn a_request_that_hangs_times_out() {
    let (_, loader) = loader(1, Duration::from_millis(300));
    request(&loader, vec![vec![vec![60]]]);
    let error = loader.take().err().unwrap().to_string();
    assert!(error.contains("timed out after 0 s (comm.progress_s)"), "{error}");
}

#[test]
fn polling_does_not_wait_but_times_out() {
    let (_, loader) = loader(1, Duration::from_millis(300));
    request(&loader, vec![vec![vec![1]]]);
    let started = Instant::now();
    let taken = loop {
        assert!(started.elapsed() < Duration::from_secs(30));
        match loader.try_take() {
            Ok(Some(taken)) => break taken,
            // Not ready yet; on a busy machine it may also exceed this test's timeout.
            Ok(None) | Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert_eq!(taken.samples, 1);
    request(&loader, vec![vec![vec![60]]]);
    let since = Instant::now();
    let error = loop {
        match loader.try_take() {
            Ok(taken) => assert!(taken.is_none()),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("timed out after 0 s (comm.progress_s)"), "{error}");
    assert!((Duration::from_millis(300)..Duration::from_secs(30)).contains(&since.elapsed()));
}

#[test]
fn devices_keep_their_cores() {
    assert_eq!(
        [(2, 2), (8, 8), (8, 3), (64, 1), (1, 4)].map(|(cores, busy)| spare_threads(cores, busy)),
        [1, 1, 5, 16, 1]
    );
}
