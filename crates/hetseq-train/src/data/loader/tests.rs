//! Tests of the loader with a task whose samples are slow or broken.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use burn::tensor::Device;
use hetseq_data::SampleLengths;
use hetseq_models::layers::Linear;

use super::*;
use crate::task::{ForwardContext, StepOutput, Task, TaskData};

/// A batch is its samples. Sample 13 cannot be read, 40 to 49 are errors, 50 panics, 60 hangs.
#[derive(Default)]
struct Reader {
    at_once: AtomicUsize,
    most_at_once: Arc<AtomicUsize>,
}

#[derive(burn::module::Module, Debug)]
struct Nothing {
    layer: Linear,
}

impl hetseq_models::Network for Nothing {}

impl TaskData for Reader {
    fn fingerprint(&self) -> String {
        String::new()
    }

    fn lengths(&self, _: Split) -> SampleLengths {
        SampleLengths::Uniform { samples: 100, tokens: 1 }
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<Batch, TaskError> {
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
            Ok(id as i32)
        };
        let read: Vec<Result<i32, TaskError>> = samples.ids.par_iter().map(read).collect();
        let ids = read.into_iter().collect::<Result<Vec<i32>, TaskError>>()?;
        let count = ids.iter().filter(|&&id| id != 13).count() as u64;
        // Sample 70 has an array of the wrong size, sample 71 a second count.
        let counts = if ids.contains(&71) { vec![count, count] } else { vec![count] };
        let rows = ids.len() + usize::from(ids.contains(&70));
        Ok(Batch::new(counts).with_i32("ids", [rows], ids))
    }
}

impl Task for Reader {
    const NAME: &'static str = "reader";
    type Config = ();
    type Model = Nothing;

    fn open((): &()) -> Result<Self, TaskError> {
        Ok(Reader::default())
    }

    fn model(&self, device: &Device) -> Nothing {
        Nothing { layer: Linear::new(1, 1, device) }
    }

    fn forward(&self, _: &Nothing, _: &Batch, _: &ForwardContext) -> Result<StepOutput, TaskError> {
        Ok(StepOutput::default())
    }
}

fn loader(threads: usize, timeout: Duration) -> Loader {
    loader_of(Reader::default(), threads, timeout)
}

fn loader_of(reader: Reader, threads: usize, timeout: Duration) -> Loader {
    let pool = pool(Some(threads), &[], NonZeroUsize::MIN).unwrap();
    Loader::start(&OpenedTask::new(reader, String::new()), 1, &pool, timeout, None).unwrap()
}

fn request(loader: &Loader, devices: Vec<Vec<Vec<u32>>>) {
    let micro = |samples| MicroBatch { samples, longest: 1 };
    let devices = devices.into_iter().map(|batches| batches.into_iter().map(micro).collect()).collect();
    loader.request(LoadRequest { split: Split::Train, epoch: 0, devices }).unwrap();
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn all_threads_work_and_results_keep_their_order() {
    let reader = Reader::default();
    let most_at_once = reader.most_at_once.clone();
    let loader = loader_of(reader, 4, LONG);
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
                let batch = |job: Arc<Job>| {
                    let ids: Vec<u32> = job.batch.i32s("ids").unwrap().iter().map(|&id| id as u32).collect();
                    assert_eq!(ids, job.micro.samples);
                    ids
                };
                jobs.into_iter().map(batch).collect()
            })
            .collect();
        assert_eq!(found, devices);
    }
    assert_eq!(most_at_once.load(Ordering::SeqCst), 4);
}

#[test]
fn an_unreadable_sample_is_loaded_but_not_counted() {
    let loader = loader(2, LONG);
    request(&loader, vec![vec![vec![12, 13, 14]]]);
    let loaded = loader.take().unwrap();
    assert_eq!((loaded.samples, loaded.counts), (3, vec![2]));
    assert_eq!(loaded.skipped, [SkippedSample { sample: 13, reason: "13.png is torn".to_owned() }]);
}

#[test]
fn the_first_of_several_errors_is_reported_after_earlier_results() {
    let loader = loader(4, LONG);
    request(&loader, vec![vec![vec![1]]]);
    request(&loader, vec![vec![vec![2, 41], vec![42]], vec![vec![43]]]);
    assert!(loader.take().is_ok());
    let error = loader.take().err().unwrap().to_string();
    assert_eq!(error, "task reader, collating a micro-batch: sample 41");
}

#[test]
fn a_batch_that_contradicts_itself_is_an_error() {
    let loader = loader(1, LONG);
    for (sample, reason) in
        [(70, "the array `ids` has 1 values, but its shape [2] needs 2"), (71, "it names 1 loss terms but counted 2")]
    {
        request(&loader, vec![vec![vec![sample]]]);
        let error = loader.take().err().unwrap().to_string();
        assert_eq!(error, format!("task reader, collating a micro-batch: {reason}"));
    }
}

#[test]
fn a_panic_in_a_task_is_an_error() {
    let loader = loader(2, LONG);
    request(&loader, vec![vec![vec![1, 50]]]);
    let error = loader.take().err().unwrap().to_string();
    assert_eq!(error, "the loader failed: the task's collate panicked (see above)");
}

#[test]
fn a_request_that_hangs_times_out() {
    let loader = loader(1, Duration::from_millis(300));
    request(&loader, vec![vec![vec![60]]]);
    let error = loader.take().err().unwrap().to_string();
    assert!(error.contains("timed out after 0 s (comm.progress_s)"), "{error}");
}

#[test]
fn polling_does_not_wait_but_times_out() {
    let loader = loader(1, Duration::from_millis(300));
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
