//! Replicas on threads: many steps side by side must neither deadlock nor drift. Burn's autodiff keeps global tables, and
//! leaves that share an id would tie the replicas' graphs together.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use hetseq_data::Costs;
use hetseq_kernels::dropout;
use hetseq_models::Network;
use hetseq_models::layers::Linear;
use hetseq_random::Key;

use super::{DeviceSpec, Devices, Emulated, LocalSum, Terms};
use crate::error::TrainError;
use crate::flat;
use crate::loader::{Job, MicroBatch};
use crate::replica::Replica;
use crate::task::{Outcome, Pass, Samples, Task, TaskError, Which};

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

    fn costs(&self, _: Which) -> Costs {
        Costs::Uniform { samples: 64, tokens: 1 }
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

    fn forward(&self, model: &Net, batch: &TensorData, pass: &Pass) -> Outcome {
        let x = Tensor::<2>::from_data(batch.clone(), &pass.device);
        let x = dropout(relu(model.first.forward(x)), 0.3, &pass.keys);
        let out = model.last.forward(x);
        Outcome { losses: vec![(out.clone() * out).sum()], scores: Vec::new() }
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
    devices.begin(jobs, Terms { scales: vec![scale], update_key, epoch_key: Key::root(0) })?;
    devices.finish()
}

const THREADS: usize = 4;
const STEPS: u32 = 1000;
const PATIENCE: Duration = Duration::from_secs(60);

fn steps() {
    let task = Arc::new(Toy);
    let device = Device::flex().autodiff();
    let layout = Arc::new(flat::layout_of(&task.model(&device)).unwrap());
    let mut parameters = Arc::new(flat::initial(&task.model(&device), &layout, 5));
    let mut devices =
        Devices::start(&task, &layout, &[const { DeviceSpec { threads: 1 } }; THREADS], PATIENCE).unwrap();
    let mut alone = Replica::new(task, layout.clone(), device);
    for step in 0..STEPS {
        let key = Key::root(1).index(u64::from(step));
        devices.load(&parameters).unwrap();
        let sum = gradients(&mut devices, (0..THREADS).map(|_| vec![job(step)]).collect(), 0.25, key).unwrap();
        alone.load(&parameters);
        let one = alone.gradients(&[job(step)], &[0.25], key).unwrap().flat;
        // The same additions in the same order as over the devices: equal bits, or a replica went its own way.
        let expected: Vec<f32> = one.iter().map(|g| ((g + g) + g) + g).collect();
        assert_eq!(sum.flat, expected, "step {step}");
        for (value, gradient) in Arc::make_mut(&mut parameters).iter_mut().zip(&sum.flat) {
            *value -= 1e-3 * gradient;
        }
    }
}

#[test]
fn four_threads_take_a_thousand_steps_in_step() {
    let (done, wait) = channel();
    std::thread::spawn(move || {
        steps();
        _ = done.send(());
    });
    wait.recv_timeout(Duration::from_secs(300)).expect("the replicas drifted or are deadlocked");
}

#[test]
fn a_panic_on_a_device_is_an_error_that_names_it() {
    let task = Arc::new(Toy);
    let layout = Arc::new(flat::layout_of(&task.model(&Device::flex().autodiff())).unwrap());
    let mut devices = Devices::start(&task, &layout, &[DeviceSpec { threads: 1 }], PATIENCE).unwrap();
    // A batch of another width than the model's: Burn panics on the shapes.
    let batch = TensorData::new(vec![0.0f32; 10], [2, 5]);
    let jobs = vec![vec![Job { micro: MicroBatch { samples: vec![0, 1], longest: 1 }, batch }]];
    let error = gradients(&mut devices, jobs, 1.0, Key::root(0)).err().unwrap().to_string();
    assert!(error.starts_with("cpu:0 failed while computing gradients"), "{error}");
    // And the device is still there.
    gradients(&mut devices, vec![vec![job(0)]], 1.0, Key::root(0)).unwrap();
}

#[test]
fn a_device_without_work_contributes_zeros() {
    let task = Arc::new(Toy);
    let layout = Arc::new(flat::layout_of(&task.model(&Device::flex().autodiff())).unwrap());
    let mut devices = Devices::start(&task, &layout, &[const { DeviceSpec { threads: 1 } }; 2], PATIENCE).unwrap();
    devices.load(&Arc::new(flat::initial(&task.model(&Device::flex()), &layout, 5))).unwrap();
    let some = gradients(&mut devices, vec![vec![job(0)], vec![]], 1.0, Key::root(0)).unwrap();
    assert_eq!(some.flat.len(), layout.len() + 1);
    assert!(some.flat.iter().any(|&x| x != 0.0));
    let none = gradients(&mut devices, vec![vec![], vec![]], 1.0, Key::root(0)).unwrap();
    assert!(none.flat.iter().all(|&x| x == 0.0));
}

#[test]
fn too_little_memory_makes_smaller_micro_batches_and_the_same_sums() {
    let task = Arc::new(Toy);
    let layout = Arc::new(flat::layout_of(&task.model(&Device::flex().autodiff())).unwrap());
    let mut devices = Devices::start(&task, &layout, &[DeviceSpec { threads: 1 }], PATIENCE).unwrap();
    devices.load(&Arc::new(flat::initial(&task.model(&Device::flex()), &layout, 5))).unwrap();
    let jobs = || vec![vec![job(0), job(4)]];
    let plenty = gradients(&mut devices, jobs(), 1.0, Key::root(3)).unwrap();
    assert_eq!(plenty.devices[0].most_tokens, None);
    let mut with = |tokens| {
        devices.emulate(Emulated { slowdown: 1.0, most_tokens: Some(tokens) });
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
