//! Support for fused operations with hand-written gradients on tensors in host memory: access to
//! the values of Burn's tensors, and registration of a backward pass in the autodiff graph. The
//! operations themselves are in the other files of this crate.
//!
//! Under autodiff, Burn splits norms, softmaxes and losses into primitives, each with one pass over
//! memory forward and one or more backward. A fused operation needs one pass each way. Its result
//! must not depend on the number of threads: rows are independent, and sums over rows consist of
//! chunks of fixed size, added in order.

use std::fmt::Debug;
use std::marker::PhantomData;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::{Autodiff, Flex};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::gradient_buffer;

/// Whether tensors of this device are in host memory, where plain loops are fastest.
pub fn is_host(device: &Device) -> bool {
    device.clone().inner() == Device::flex()
}

/// A tensor's values and its node in the autodiff graph.
pub(crate) struct HostInput {
    pub(crate) values: Values,
    /// `None` for a tensor without autodiff.
    pub(crate) node: Option<NodeGuard>,
}

/// Returns `None` if the tensor is not in host memory or not `f32`. The operation must then be
/// composed of Burn's. To overwrite the values in place, drop the tensor first.
pub(crate) fn input<const D: usize>(tensor: &Tensor<D>) -> Option<HostInput> {
    if tensor.dtype() != DType::F32 {
        return None;
    }
    if let Ok(tracked) = tensor.clone().try_into_primitive::<Autodiff<Flex>>() {
        let (primitive, node) = tracked.into_parts();
        return Some(HostInput { values: Values::new(primitive), node: Some(node) });
    }
    let primitive = tensor.clone().try_into_primitive::<Flex>().ok()?;
    Some(HostInput { values: Values::new(primitive), node: None })
}

/// The input, weight and bias of a layer. Also `None` if only some of them are under autodiff.
pub(crate) fn layer<const D: usize, const W: usize>(
    x: &Tensor<D>,
    weight: &Tensor<W>,
    bias: &Tensor<1>,
) -> Option<[HostInput; 3]> {
    same_tracking([input(x)?, input(weight)?, input(bias)?])
}

/// Returns `None` if only some of the inputs are under autodiff.
pub(crate) fn same_tracking<const N: usize>(inputs: [HostInput; N]) -> Option<[HostInput; N]> {
    let tracked = inputs.iter().filter(|input| input.node.is_some()).count();
    (tracked == 0 || tracked == N).then_some(inputs)
}

/// Indices in host memory. `None` if one is not below `limit`: Burn then reports the error.
pub(crate) fn indices<const D: usize>(tensor: &Tensor<D, Int>, limit: usize) -> Option<Vec<usize>> {
    let data = tensor.clone().try_into_data_as::<i64>().ok()?;
    let index = |&index: &i64| usize::try_from(index).ok().filter(|&index| index < limit);
    data.as_slice::<i64>().ok()?.iter().map(index).collect()
}

/// The saved state of an operation and its backward pass.
pub(crate) trait BackwardRule<const N: usize>: Debug + Clone + Send + 'static {
    /// Returns the gradients of the inputs, in their order: `None` for those that are not needed or
    /// were added to their target.
    fn gradients(self, upstream: Values, targets: [Target; N]) -> [Option<Values>; N];
}

/// Where the gradient of an operation's input goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// It is not needed.
    Nowhere,
    /// To the operation that computed the input.
    Graph,
    /// To a parameter's slot in the [`GradientBuffer`](crate::GradientBuffer).
    Slot(usize),
}

impl Target {
    fn of(input: NodeId) -> Self {
        gradient_buffer::slot_of(input).map_or(Target::Graph, Target::Slot)
    }

    pub(crate) fn is_needed(self) -> bool {
        !matches!(self, Target::Nowhere)
    }
}

/// Registers `output` as the result of an operation on `inputs`. Either all inputs are under
/// autodiff or none.
pub(crate) fn attach<const N: usize, const D: usize, R: BackwardRule<N>>(
    inputs: [Option<NodeGuard>; N],
    output: Values,
    rule: R,
) -> Tensor<D> {
    let inputs: Vec<NodeGuard> = inputs.into_iter().flatten().collect();
    let Ok(inputs) = <[NodeGuard; N]>::try_from(inputs) else {
        return Tensor::from_primitive::<Flex>(output.0);
    };
    let node = match FusedBackward::<R>(PhantomData).prepare::<NoCheckpointing>(inputs).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(rule, output.0),
        OpsKind::UnTracked(prepared) => prepared.finish(output.0),
    };
    Tensor::from_primitive::<Autodiff<Flex>>(node)
}

#[derive(Debug)]
struct FusedBackward<R>(PhantomData<R>);

impl<const N: usize, R: BackwardRule<N>> Backward<Flex, N> for FusedBackward<R> {
    type State = R;

    fn backward(self, ops: Ops<R, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let upstream = Values::new(grads.consume::<Flex>(&ops.node));
        let targets = ops
            .parents
            .each_ref()
            .map(|parent| parent.as_ref().map_or(Target::Nowhere, |parent| Target::of(parent.id)));
        let gradients = ops.state.gradients(upstream, targets);
        for ((parent, target), gradient) in ops.parents.into_iter().zip(targets).zip(gradients) {
            let (Some(parent), Some(gradient)) = (parent, gradient) else { continue };
            match target {
                Target::Slot(slot) => gradient_buffer::add_values(slot, gradient.get()),
                Target::Graph | Target::Nowhere => grads.register::<Flex>(parent.id, gradient.0),
            }
        }
    }
}

/// Contiguous values that fill their whole storage. Clones share the storage.
#[derive(Debug, Clone)]
pub(crate) struct Values(FlexTensor);

impl Values {
    /// Copies the values if they are not contiguous.
    pub(crate) fn new(tensor: FlexTensor) -> Self {
        let is_whole = tensor.as_slice::<f32>().is_some_and(|values| values.len() == tensor.storage::<f32>().len());
        if is_whole {
            return Values(tensor);
        }
        let shape = tensor.layout().shape().to_vec();
        let contiguous = tensor.to_contiguous();
        let values = contiguous.as_slice::<f32>().unwrap_or_default().to_vec();
        Values::from_vec(values, shape)
    }

    pub(crate) fn from_vec(values: Vec<f32>, shape: Vec<usize>) -> Self {
        Values(FlexTensor::from_data(TensorData::new(values, shape)))
    }

    pub(crate) fn shape(&self) -> Vec<usize> {
        self.0.layout().shape().to_vec()
    }

    /// Size of the last dimension.
    pub(crate) fn width(&self) -> usize {
        self.0.layout().shape().to_vec().last().copied().unwrap_or(1)
    }

    pub(crate) fn get(&self) -> &[f32] {
        self.0.storage()
    }

    /// Copies the values first if they are shared.
    pub(crate) fn get_mut(&mut self) -> &mut [f32] {
        self.0.storage_mut()
    }
}

/// Number of values that is worth using another thread.
pub(crate) const CHUNK: usize = 1 << 14;

/// Number of values in whole rows of about [`CHUNK`] values.
pub(crate) fn chunk_of_rows(width: usize) -> usize {
    (CHUNK / width.max(1)).max(1) * width.max(1)
}

/// Adds up the results of chunks, `width` values each, in their order.
pub(crate) fn sum_of_chunks(chunks: Vec<Vec<f32>>, width: usize) -> Vec<f32> {
    let mut sums = vec![0.0; width];
    for chunk in chunks {
        for (sum, more) in sums.iter_mut().zip(chunk) {
            *sum += more;
        }
    }
    sums
}
