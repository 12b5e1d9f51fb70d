//! Replicas on threads: many concurrent steps must neither deadlock nor diverge. Burn's autodiff
//! has global tables, and leaves that share an id would join the replicas' graphs. Also failover.

mod frozen_parameters;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::Device;
use burn::tensor::activation::relu;
use hetseq_data::{Batch, SampleLengths};
use hetseq_kernels::dropout;
use hetseq_models::Network;
use hetseq_models::layers::Linear;
use hetseq_optim::Layout;
use hetseq_random::Key;

use super::{DeviceSpec, Devices, FaultInjection, LocalSum, PrecisionPolicy, StepParams, burn_compute};
use crate::data::loader::{Job, MicroBatch};
use crate::devices::params;
use crate::error::TrainError;
use crate::task::compute::ReplicaSetup;
use crate::task::{
    Answer, ForwardContext, Inference, OpenedTask, Samples, Split, StepOutput, Task, TaskData, TaskError,
};

struct Toy;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    last: Linear,
}

impl Network for Net {}

impl TaskData for Toy {
    fn fingerprint(&self) -> String {
        String::new()
    }

    fn lengths(&self, _: Split) -> SampleLengths {
        SampleLengths::Uniform { samples: 64, tokens: 1 }
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<Batch, TaskError> {
        Ok(data(samples.ids))
    }
}

impl Task for Toy {
    const NAME: &'static str = "toy";
    type Config = ();
    type Model = Net;

    fn open(_: &()) -> Result<Self, TaskError> {
        Ok(Toy)
    }

    fn model(&self, device: &Device) -> Net {
        Net { first: Linear::new(6, 16, device), last: Linear::new(16, 3, device) }
    }

    fn forward(&self, model: &Net, batch: &Batch, ctx: &ForwardContext) -> Result<StepOutput, TaskError> {
        let x = ctx.floats::<2>(batch, "x")?;
        let x = dropout(relu(model.first.forward(x)), 0.3, &ctx.keys);
        let out = model.last.forward(x);
        Ok(StepOutput { losses: vec![(out.clone() * out).sum()], ..StepOutput::default() })
    }
}

fn data(ids: &[u32]) -> Batch {
    let values = ids.iter().flat_map(|&id| (0..6).map(move |i| Key::root(u64::from(id)).unit(i))).collect();
    Batch::new([ids.len() as u64]).with_f32("x", [ids.len(), 6], values)
}

fn job(step: u32) -> Arc<Job> {
    let samples: Vec<u32> = (step..step + 4).collect();
    Arc::new(Job { batch: data(&samples), micro: MicroBatch { samples, longest: 1 } })
}

/// The width of its batch differs from the model's: Burn panics on the shapes.
fn narrow() -> Arc<Job> {
    let batch = Batch::new([2]).with_f32("x", [2, 5], vec![0.0; 10]);
    Arc::new(Job { micro: MicroBatch { samples: vec![0, 1], longest: 1 }, batch })
}

fn gradients(
    devices: &mut Devices,
    jobs: Vec<Vec<Arc<Job>>>,
    scale: f32,
    update_key: Key,
) -> Result<LocalSum, TrainError> {
    devices.begin(jobs, params_of(0, scale, update_key));
    devices.finish()
}

fn params_of(update: u64, scale: f32, update_key: Key) -> StepParams {
    StepParams { update, scales: vec![scale], loss_scale: 1.0, update_key, epoch_key: Key::root(0) }
}

fn start(devices: &[DeviceSpec]) -> (Devices, Arc<Layout>) {
    start_with(devices, HANG_TIMEOUT)
}

fn start_with(devices: &[DeviceSpec], hang_timeout: Duration) -> (Devices, Arc<Layout>) {
    let task = OpenedTask::new(Toy, String::new());
    let layout = Arc::new(task.compute.layout().unwrap());
    (Devices::start(&task, &layout, devices, PrecisionPolicy::default(), hang_timeout).unwrap(), layout)
}

fn cpus(count: usize) -> Vec<DeviceSpec> {
    (0..count).map(|index| DeviceSpec::cpu(index, 1)).collect()
}

fn initial(layout: &Layout) -> Arc<Vec<f32>> {
    Arc::new(params::initial(&Toy.model(&Device::flex()), layout, 5))
}

const THREADS: usize = 4;
const STEPS: u32 = 1000;
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

fn steps() {
    let (mut devices, layout) = start(&cpus(THREADS));
    let mut parameters = initial(&layout);
    let task = OpenedTask::new(Toy, String::new());
    let setup = ReplicaSetup {
        layout,
        policy: PrecisionPolicy::default(),
        steps: Arc::default(),
        hang_timeout: Duration::from_secs(60),
    };
    let mut alone = task.compute.open(&DeviceSpec::cpu(0, 1), &setup).unwrap();
    for step in 0..STEPS {
        let key = Key::root(1).index(u64::from(step));
        devices.load(&parameters).unwrap();
        let sum = gradients(&mut devices, (0..THREADS).map(|_| vec![job(step)]).collect(), 0.25, key).unwrap();
        alone.load(&parameters, parameters.len()).unwrap();
        let one = alone.gradients(&[job(step)], &params_of(0, 0.25, key)).unwrap().flat;
        // The same additions in the same order as over the devices: equal bits, or a replica
        // diverged.
        let expected: Vec<f32> = one.iter().map(|g| ((g + g) + g) + g).collect();
        assert_eq!(sum.flat, expected, "step {step}");
        for (value, gradient) in Arc::make_mut(&mut parameters).iter_mut().zip(&sum.flat) {
            *value -= 1e-3 * gradient;
        }
    }
}

/// Devices share the parameters, and after `release` the optimizer changes them in place.
#[test]
fn parameters_are_shared_until_they_are_released() {
    let (mut devices, layout) = start(&cpus(2));
    let mut parameters = initial(&layout);
    let at = parameters.as_ptr();
    devices.load(&parameters).unwrap();
    assert!(Arc::strong_count(&parameters) > 1);
    devices.release().unwrap();
    let values: &mut Vec<f32> = Arc::make_mut(&mut parameters);
    assert_eq!(values.as_ptr(), at);
    devices.load_trainable(&parameters).unwrap();
}

#[test]
fn four_threads_stay_identical_for_a_thousand_steps() {
    let (done, wait) = channel();
    std::thread::spawn(move || {
        steps();
        _ = done.send(());
    });
    wait.recv_timeout(Duration::from_secs(300)).expect("the replicas diverged or are deadlocked");
}

#[test]
fn a_panic_on_a_device_is_an_error_that_names_it() {
    let (mut devices, _) = start(&cpus(1));
    let error = gradients(&mut devices, vec![vec![narrow()]], 1.0, Key::root(0)).err().unwrap().to_string();
    assert!(error.starts_with("cpu:0 failed while computing gradients"), "{error}");
    // The device still works.
    gradients(&mut devices, vec![vec![job(0)]], 1.0, Key::root(0)).unwrap();
}

#[test]
fn a_device_without_work_contributes_zeros() {
    let (mut devices, layout) = start(&cpus(2));
    devices.load(&initial(&layout)).unwrap();
    let some = gradients(&mut devices, vec![vec![job(0)], vec![]], 1.0, Key::root(0)).unwrap();
    assert_eq!(some.flat.len(), layout.len() + 1);
    assert!(some.flat.iter().any(|&x| x != 0.0));
    let none = gradients(&mut devices, vec![vec![], vec![]], 1.0, Key::root(0)).unwrap();
    assert!(none.flat.iter().all(|&x| x == 0.0));
}

#[test]
fn smaller_micro_batches_after_out_of_memory_give_the_same_sums() {
    let (mut devices, layout) = start(&cpus(1));
    devices.load(&initial(&layout)).unwrap();
    let jobs = || vec![vec![job(0), job(4)]];
    let plenty = gradients(&mut devices, jobs(), 1.0, Key::root(3)).unwrap();
    assert_eq!(plenty.devices[0].most_tokens, None);
    let mut with = |tokens| {
        devices.inject_faults(FaultInjection { most_tokens: Some(tokens), ..FaultInjection::default() });
        gradients(&mut devices, jobs(), 1.0, Key::root(3))
    };
    let little = with(1).unwrap();
    assert_eq!(little.devices[0].most_tokens, Some(1));
    for (a, b) in plenty.flat.iter().zip(&little.flat) {
        assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{a} and {b}");
    }
    let error = with(0).err().unwrap().to_string();
    assert!(error.contains("not even one sample of 1 tokens fits"), "{error}");
}

#[test]
fn the_others_compute_the_samples_of_a_lost_device() {
    let (mut devices, layout) = start(&cpus(3));
    let parameters = initial(&layout);
    devices.load(&parameters).unwrap();
    let jobs = || vec![vec![job(0), job(4)], vec![job(8), job(12)], vec![job(16)]];
    let all = gradients(&mut devices, jobs(), 1.0, Key::root(3)).unwrap();
    devices.inject_faults(FaultInjection { lost: vec![("cpu:1".to_owned(), 7)], ..FaultInjection::default() });
    for update in [7, 8] {
        devices.begin(jobs(), params_of(update, 1.0, Key::root(3)));
        let sum = devices.finish().unwrap();
        for (a, b) in all.flat.iter().zip(&sum.flat) {
            assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "update {update}: {a} and {b}");
        }
        // It is reported once, without a compute time.
        assert_eq!(
            sum.lost.iter().map(|lost| (lost.device, lost.has_replacement)).collect::<Vec<_>>(),
            if update == 7 { vec![(1, false)] } else { vec![] }
        );
        assert!(sum.devices[1].compute.is_zero() && !sum.devices[0].compute.is_zero());
    }
    let totals = devices.evaluate(jobs()).unwrap();
    assert_eq!(totals.iter().map(|(part, _)| part.samples).sum::<u64>(), 20);
    assert_eq!(totals[1].0.samples, 0);
}

#[test]
fn the_others_compute_the_samples_of_a_device_that_hangs() {
    let (mut devices, layout) = start_with(&cpus(2), Duration::from_secs(4));
    devices.load(&initial(&layout)).unwrap();
    let jobs = || vec![vec![job(0), job(4)], vec![job(8), job(12)]];
    let all = gradients(&mut devices, jobs(), 1.0, Key::root(3)).unwrap();
    devices.inject_faults(FaultInjection { hung: vec![("cpu:1".to_owned(), 7)], ..FaultInjection::default() });
    devices.begin(jobs(), params_of(7, 1.0, Key::root(3)));
    // The device that takes over gets a full timeout, not the rest of the first one's.
    let sum = devices.finish().unwrap();
    assert!(sum.lost.len() == 1 && sum.lost[0].reason.starts_with("it hangs"), "{:?}", sum.lost);
    for (a, b) in all.flat.iter().zip(&sum.flat) {
        assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{a} and {b}");
    }
}

#[test]
fn samples_that_fail_everywhere_are_not_the_devices_fault() {
    let (mut devices, _) = start(&cpus(3));
    let error = gradients(&mut devices, vec![vec![narrow()], vec![], vec![]], 1.0, Key::root(0));
    let error = error.err().unwrap().to_string();
    assert!(error.starts_with("cpu:1 failed while computing gradients") && error.contains("width"), "{error}");
}

#[test]
fn an_error_of_the_task_is_not_tried_on_other_devices() {
    let (mut devices, _) = start(&cpus(2));
    let empty = Arc::new(Job { micro: MicroBatch { samples: vec![0], longest: 1 }, batch: Batch::new([1]) });
    let error = gradients(&mut devices, vec![vec![empty], vec![]], 1.0, Key::root(0)).err().unwrap();
    assert!(matches!(error, TrainError::Forward { .. }));
    assert_eq!(error.to_string(), "task toy, computing a micro-batch: the batch has no array `x`, only none");
    // No device was dropped.
    let sum = gradients(&mut devices, vec![vec![job(0)], vec![job(4)]], 1.0, Key::root(0)).unwrap();
    assert!(sum.lost.is_empty() && !sum.devices[0].compute.is_zero());
}

#[test]
fn without_the_loaded_parameters_no_device_is_replaced() {
    let (mut devices, layout) = start(&cpus(1));
    // As if it were a GPU, which the CPU replaces.
    devices.load(&initial(&layout)).unwrap();
    devices.release().unwrap();
    let error = devices.cpu_replacement(0).err().unwrap().to_string();
    assert!(error.contains("the parameters are no longer in memory"), "{error}");
    let parameters = initial(&layout);
    devices.load(&parameters).unwrap();
    assert!(devices.cpu_replacement(0).is_ok());
}

#[test]
fn f16_gradients_are_scaled_and_overflows_are_reported() {
    let half = DeviceSpec { precision: Some(hetseq_kernels::Dtype::F16), ..DeviceSpec::cpu(0, 1) };
    let (mut devices, layout) = start(&[half]);
    devices.load(&initial(&layout)).unwrap();
    let with = |devices: &mut Devices, loss_scale, update| {
        devices.begin(vec![vec![job(0)]], StepParams { loss_scale, ..params_of(update, 1.0, Key::root(3)) });
        devices.finish().unwrap()
    };
    let plain = with(&mut devices, 1.0, 0);
    assert_eq!(plain.overflow, Some(false));
    let scaled = with(&mut devices, 256.0, 0);
    assert_eq!(scaled.overflow, Some(false));
    for (a, b) in plain.flat.iter().zip(&scaled.flat) {
        assert!((a - b).abs() <= 2e-2 * a.abs().max(1.0), "{a} and {b}");
    }
    assert_eq!(with(&mut devices, 16_777_216.0, 0).overflow, Some(true), "exceeds the f16 range");
    devices.inject_faults(FaultInjection { overflows: vec![4], ..FaultInjection::default() });
    assert_eq!(with(&mut devices, 1.0, 4).overflow, Some(true));
    assert_eq!(with(&mut devices, 1.0, 5).overflow, Some(false));
}

/// Answers each row with its input. Panics on the device `cpu:1`, and on every device for the
/// input 99.
struct Echo;

impl Inference for Echo {
    const TASK: &'static str = "echo";
    type Model = Net;

    fn model(&self, device: &Device) -> Net {
        Toy.model(device)
    }

    fn predict(&self, _: &Net, batch: &Batch, _: &ForwardContext) -> Result<Vec<Answer>, TaskError> {
        let inputs = batch.i32s("x")?;
        assert!(!inputs.contains(&99), "a bad input");
        assert!(!std::thread::current().name().is_some_and(|name| name.starts_with("cpu:1")), "a bad device");
        let answer = |input: &i32| Answer { texts: vec![(input.to_string(), 0.0)], tokens: 1 };
        Ok(inputs.iter().map(answer).collect())
    }
}

/// Answers of a pool with three devices to one job per input, until `most` jobs are done.
fn answers(inputs: &[i32], most: usize) -> Result<Vec<String>, TrainError> {
    let task = OpenedTask {
        compute: Arc::new(burn_compute::predicting(Arc::new(Echo))),
        ..OpenedTask::new(Toy, String::new())
    };
    let layout = Arc::new(task.compute.layout().unwrap());
    let mut devices = Devices::start(&task, &layout, &cpus(3), PrecisionPolicy::default(), HANG_TIMEOUT).unwrap();
    let parameters = initial(&layout);
    devices.load(&parameters).unwrap();
    let job = |&input: &i32| {
        let micro = MicroBatch { samples: vec![input as u32], longest: 1 };
        Arc::new(Job { micro, batch: Batch::new([]).with_i32("x", [1], vec![input]) })
    };
    let mut found = Vec::new();
    devices.predict(inputs.iter().map(job).collect(), &mut |job, answers| {
        assert_eq!(answers[0].texts[0].0, job.micro.samples[0].to_string());
        found.extend(answers.into_iter().flat_map(|answer| answer.texts).map(|(text, _)| text));
        found.len() < most
    })?;
    Ok(found)
}

#[test]
fn every_input_is_answered_once_though_a_device_fails() {
    let inputs: Vec<i32> = (0..40).collect();
    let mut found = answers(&inputs, usize::MAX).unwrap();
    found.sort_unstable_by_key(|text| text.parse::<i32>().unwrap());
    assert_eq!(found, inputs.iter().map(i32::to_string).collect::<Vec<_>>());
}

#[test]
fn inference_can_be_stopped_and_a_bad_input_ends_it() {
    let found = answers(&(0..40).collect::<Vec<i32>>(), 5).unwrap();
    assert!((5..10).contains(&found.len()), "{found:?}");
    let error = answers(&[1, 99, 2], usize::MAX).err().unwrap().to_string();
    assert!(error.contains("failed while predicting: a bad input"), "{error}");
}
