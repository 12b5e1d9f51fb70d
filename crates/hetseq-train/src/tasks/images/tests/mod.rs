//! The image task against PyTorch, and its handling of unreadable files.

mod convnet;
mod resnet;
mod skip;

use std::sync::Arc;

use hetseq_optim::Layout;
use hetseq_random::Key;

use super::{ImageConfig, ImageTask};
use crate::data::loader::{self, Job, MicroBatch};
use crate::devices::{DeviceSpec, PrecisionPolicy, StepParams};
use crate::task::compute::ReplicaSetup;
use crate::task::{OpenedTask, Replica, Split};

/// The same generator as `scripts/fixtures/stream.py`.
struct Stream(u32);

impl Stream {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 16
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.word() >> 8) as u8).collect()
    }

    fn take(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|i| (self.word() as f32 / 32768.0 - 1.0) / f32::powi(2.0, (i % 8) as i32)).collect()
    }
}

/// A config with `more` lines in the table.
fn config(more: &str) -> ImageConfig {
    toml::from_str(&format!("data = \"\"\n{more}")).unwrap()
}

/// A task with a replica on one thread of the CPU.
struct OnCpu {
    task: OpenedTask,
    layout: Arc<Layout>,
    replica: Box<dyn Replica>,
}

impl OnCpu {
    fn new(task: ImageTask) -> Self {
        let task = OpenedTask::new(task, String::new());
        let layout = Arc::new(task.compute.layout().unwrap());
        let (policy, hang_timeout) = (PrecisionPolicy::default(), std::time::Duration::from_secs(60));
        let setup = ReplicaSetup { layout: layout.clone(), policy, steps: Arc::default(), hang_timeout };
        let replica = task.compute.open(&DeviceSpec::cpu(0, 1), &setup).unwrap();
        OnCpu { task, layout, replica }
    }

    /// A micro-batch of these samples.
    fn job(&self, split: Split, ids: &[u32]) -> Arc<Job> {
        let micro = MicroBatch { samples: ids.to_vec(), longest: 1 };
        Arc::new(loader::collate(&self.task, split, micro, Key::root(1)).unwrap().job)
    }

    /// The sum of gradients times `scale`, then the loss sum.
    fn gradients(&mut self, jobs: &[Arc<Job>], scale: f32) -> Vec<f32> {
        let key = Key::root(2);
        let params = StepParams { update: 0, scales: vec![scale], loss_scale: 1.0, update_key: key, epoch_key: key };
        self.replica.gradients(jobs, &params).unwrap().flat
    }
}
