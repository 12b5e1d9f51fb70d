//! Burn models as the compute half of a task: opens devices, chooses their precision and builds
//! replicas (`replica.rs`). Created by the task registry.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::tensor::Device;
use hetseq_kernels::Dtype;
use hetseq_models::Network;
use hetseq_optim::Layout;

use super::backend::BackendError;
use super::replica::{BurnDevice, PredictingReplica, TrainingReplica};
use super::{DeviceSpec, PrecisionPolicy, backend, params};
use crate::task::compute::ReplicaSetup;
use crate::task::{Compute, ComputeError, HuggingFace, Inference, Metric, Replica, Task, TaskError, Totals};

/// A Burn model as [`Compute`].
struct BurnCompute<B>(B);

/// What tasks and inference have in common: a model, and a replica that uses it.
trait BurnModel: Send + Sync {
    type Model: Network;

    fn model(&self, device: &Device) -> Self::Model;
    fn replica(&self, on: BurnDevice) -> Box<dyn Replica>;
    fn metrics(&self, totals: &Totals) -> Vec<Metric>;
    fn hugging_face(&self) -> &dyn HuggingFace;
}

impl<B: BurnModel> Compute for BurnCompute<B> {
    fn layout(&self) -> Result<Layout, TaskError> {
        layout_of(|device| self.0.model(device))
    }

    fn initial(&self, layout: &Layout, seed: u64) -> Result<Vec<f32>, TaskError> {
        Ok(params::initial(&self.0.model(&Device::flex()), layout, seed))
    }

    fn open(&self, spec: &DeviceSpec, setup: &ReplicaSetup) -> Result<Box<dyn Replica>, ComputeError> {
        let device = open_device(spec, setup)?;
        catch_panic(|| Ok(self.0.replica(device)))
    }

    fn metrics(&self, totals: &Totals) -> Result<Vec<Metric>, TaskError> {
        Ok(self.0.metrics(totals))
    }

    fn hugging_face(&self) -> &dyn HuggingFace {
        self.0.hugging_face()
    }
}

/// Trains and evaluates the model of a task.
pub(crate) fn training<T: Task>(task: Arc<T>) -> impl Compute {
    BurnCompute(Training(task))
}

struct Training<T>(Arc<T>);

impl<T: Task> BurnModel for Training<T> {
    type Model = T::Model;

    fn model(&self, device: &Device) -> T::Model {
        self.0.model(device)
    }

    fn replica(&self, on: BurnDevice) -> Box<dyn Replica> {
        Box::new(TrainingReplica::new(self.0.clone(), on))
    }

    fn metrics(&self, totals: &Totals) -> Vec<Metric> {
        self.0.metrics(totals)
    }

    fn hugging_face(&self) -> &dyn HuggingFace {
        self.0.hugging_face()
    }
}

/// Answers inputs with the model of a checkpoint.
pub(crate) fn predicting<I: Inference>(inference: Arc<I>) -> impl Compute {
    BurnCompute(Predicting(inference))
}

struct Predicting<I>(Arc<I>);

impl<I: Inference> BurnModel for Predicting<I> {
    type Model = I::Model;

    fn model(&self, device: &Device) -> I::Model {
        self.0.model(device)
    }

    fn replica(&self, on: BurnDevice) -> Box<dyn Replica> {
        Box::new(PredictingReplica::new(self.0.clone(), on))
    }

    fn metrics(&self, _totals: &Totals) -> Vec<Metric> {
        Vec::new()
    }

    fn hugging_face(&self) -> &dyn HuggingFace {
        self.0.hugging_face()
    }
}

/// The flat layout of a model. Builds it, and Burn panics on impossible shapes.
fn layout_of<M: burn::module::Module>(model: impl FnOnce(&Device) -> M) -> Result<Layout, TaskError> {
    match catch_unwind(AssertUnwindSafe(|| params::layout_of(&model(&Device::flex().autodiff())))) {
        Ok(layout) => Ok(layout?),
        Err(_) => Err("its model could not be built (see above)".into()),
    }
}

fn open_device(spec: &DeviceSpec, setup: &ReplicaSetup) -> Result<BurnDevice, ComputeError> {
    let ReplicaSetup { layout, policy, steps, .. } = setup.clone();
    let device = backend::open(&spec.kind)?;
    let precision = choose_precision(spec, policy, |precision| backend::try_product(&device, precision))?;
    Ok(BurnDevice { device: device.autodiff(), precision, layout, steps })
}

/// Chooses the precision: that of the device's name, else that of `run.precision`. `can` tests one
/// on the device.
fn choose_precision(
    spec: &DeviceSpec,
    policy: PrecisionPolicy,
    can: impl Fn(Dtype) -> Result<(), BackendError>,
) -> Result<Dtype, ComputeError> {
    let requested = match (spec.precision, policy) {
        (Some(precision), _) => precision,
        (None, PrecisionPolicy::Fixed(dtype)) => dtype,
        (None, PrecisionPolicy::Auto) if !spec.is_gpu() => Dtype::F32,
        (None, PrecisionPolicy::Auto) => {
            let lower = [Dtype::Bf16, Dtype::F16].into_iter().find(|&precision| can(precision).is_ok());
            return Ok(lower.unwrap_or(Dtype::F32));
        }
    };
    can(requested).map_err(|reason| {
        ComputeError::Device(format!(
            "{reason}. Use {}@f32 in run.devices, or run.precision = \"auto\" for the best of each device",
            spec.name
        ))
    })?;
    Ok(requested)
}

/// Turns a panic into an error, as [`backend::catch_panic`].
pub(crate) fn catch_panic<R>(work: impl FnOnce() -> Result<R, ComputeError>) -> Result<R, ComputeError> {
    backend::catch_panic(|| Ok(work())).unwrap_or_else(|panic| Err(panic.into()))
}

impl From<BackendError> for ComputeError {
    fn from(error: BackendError) -> Self {
        ComputeError::from_message(error.0)
    }
}
