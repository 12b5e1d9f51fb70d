//! Replicas on threads: many concurrent steps must neither deadlock nor diverge. Burn's autodiff
//! has global tables, and leaves that share an id would join the replicas' graphs. Also failover.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use hetseq_data::SampleLengths;
use hetseq_kernels::dropout;
use hetseq_models::Network;
use hetseq_models::layers::Linear;
use hetseq_optim::Layout;
use hetseq_random::Key;

use super::{DeviceSpec, Devices, FaultInjection, LocalSum, PrecisionPolicy, StepParams};
use crate::data::loader::{Job, MicroBatch};
use crate::devices::params;
use crate::devices::replica::Replica;
use crate::error::TrainError;
use crate::task::{ForwardContext, Samples, Split, StepOutput, Task, TaskError};

struct Toy;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    last: Linear,
}

impl Network for Net {}

impl Task for Toy {
    const NAME: &'static str = "toy";
    type Config = ();
    type Model = Net;
    type Batch = TensorData;

    fn open(_: &()) -> Result<Self, TaskError> {
        Ok(Toy)
    }

    fn fingerprint(&self) -> String {
        String::new()
    }

    fn lengths(&self, _: Split) -> SampleLengths {
        SampleLengths::Uniform { samples: 64, tokens: 1 }
    }

    fn model(&self, device: &Device) -> Net {
        Net { first: Linear::new(6, 16, device), last: Linear::new(16, 3, device) }
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<TensorData, TaskError> {
        Ok(data(samples.ids))
    }

    fn counts(&self, batch: &TensorData) -> Vec<u64> {
        vec![batch.shape()[0] as u64]
    }

    fn forward(&self, model: &Net, batch: &TensorData, ctx: &ForwardContext) -> StepOutput {
        let x = Tensor::<2>::from_data(batch.clone(), &ctx.device);
        let x = dropout(relu(model.first.forward(x)), 0.3, &ctx.keys);
        let out = model.last.forward(x);
        StepOutput { losses: vec![(out.clone() * out).sum()], scores: Vec::new() }
    }
}

fn data(ids: &[u32]) -> TensorData {
    let values: Vec<f32> = ids.iter().flat_map(|&id| (0..6).map(move |i| Key::root(u64::from(id)).unit(i))).collect();
    TensorData::new(values, [ids.len(), 6])
}

fn job(step: u32) -> Job<Toy> {
    let samples: Vec<u32> = (step..step + 4).collect();
    Job { batch: data(&samples), micro: MicroBatch { samples, longest: 1 } }
}

fn gradients(
    devices: &mut Devices<Toy>,
    jobs: Vec<Vec<Job<Toy>>>,
    scale: f32,
    update_key: Key,
) -> Result<LocalSum, TrainError> {
    devices.begin(jobs, params_of(0, scale, update_key));
    devices.finish()
}

fn params_of(update: u64, scale: f32, update_key: Key) -> StepParams {
    StepParams { update, scales: vec![scale], loss_scale: 1.0, update_key, epoch_key: Key::root(0) }
}

fn start(devices: &[DeviceSpec]) -> (Devices<Toy>, Arc<Layout>) {
    start_with(devices, HANG_TIMEOUT)
}

fn start_with(devices: &[DeviceSpec], hang_timeout: Duration) -> (Devices<Toy>, Arc<Layout>) {
    let task = Arc::new(Toy);
    let layout = Arc::new(params::layout_of(&task.model(&Device::flex().autodiff())).unwrap());
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
    let mut alone = Replica::new(Arc::new(Toy), layout.clone(), Device::flex().autodiff());
    for step in 0..STEPS {
        let key = Key::root(1).index(u64::from(step));
        devices.load(&parameters).unwrap();
        let sum = gradients(&mut devices, (0..THREADS).map(|_| vec![job(step)]).collect(), 0.25, key).unwrap();
        alone.load(&parameters).unwrap();
        let one = alone.gradients(&[job(step)], &[0.25], key).unwrap().flat;
        // The same additions in the same order as over the devices: equal bits, or a replica
        // diverged.
        let expected: Vec<f32> = one.iter().map(|g| ((g + g) + g) + g).collect();
        assert_eq!(sum.flat, expected, "step {step}");
        for (value, gradient) in Arc::make_mut(&mut parameters).iter_mut().zip(&sum.flat) {
            *value -= 1e-3 * gradient;
        }
    }
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
    // The width of the batch differs from the model's: Burn panics on the shapes.
    let batch = TensorData::new(vec![0.0f32; 10], [2, 5]);
    let jobs = vec![vec![Job { micro: MicroBatch { samples: vec![0, 1], longest: 1 }, batch }]];
    let error = gradients(&mut devices, jobs, 1.0, Key::root(0)).err().unwrap().to_string();
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
    let totals = devices.evaluate(jobs(), Key::root(0)).unwrap();
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
    let (mut devices, _) = start(&cpus(2));
    let narrow = || Job {
        micro: MicroBatch { samples: vec![0, 99], longest: 1 },
        batch: TensorData::new(vec![0.0f32; 10], [2, 5]),
    };
    // Collating again gives the right width, so the second device succeeds.
    let sum = gradients(&mut devices, vec![vec![narrow()], vec![]], 1.0, Key::root(0)).unwrap();
    assert!(sum.lost[0].reason.contains("width"), "{}", sum.lost[0].reason);
    // The last device fails too.
    let error = gradients(&mut devices, vec![vec![], vec![narrow()]], 1.0, Key::root(0)).err().unwrap().to_string();
    assert!(error.starts_with("cpu:1 failed while computing gradients"), "{error}");
}

#[test]
fn f16_gradients_are_scaled_and_overflows_are_reported() {
    let half = DeviceSpec { precision: Some(hetseq_kernels::Dtype::F16), ..DeviceSpec::cpu(0, 1) };
    let (mut devices, layout) = start(&[half]);
    devices.load(&initial(&layout)).unwrap();
    let with = |devices: &mut Devices<Toy>, loss_scale, update| {
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
