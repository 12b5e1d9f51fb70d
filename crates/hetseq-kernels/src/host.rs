//! Operations with a gradient written by hand, on tensors in host memory. How a kernel reaches the numbers behind Burn's
//! tensors and hangs its backward pass into the graph; what is computed is in the kernels' own files.
//!
//! Under autodiff Burn takes norms, softmaxes and losses apart into primitives, each a pass over memory forward and one or more
//! backward. A kernel here is one pass each way. What it computes may not depend on the number of threads: rows are
//! independent, and sums over rows are made of chunks of fixed size, added in order.

use std::fmt::Debug;
use std::marker::PhantomData;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::{Autodiff, Flex};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

/// Whether tensors of this device live in host memory, where plain loops are the fastest way.
pub fn is_host(device: &Device) -> bool {
    device.clone().inner() == Device::flex()
}

/// A tensor's numbers and its place in the graph.
pub(crate) struct Input {
    pub(crate) values: Values,
    /// None for a tensor that is not under autodiff.
    pub(crate) node: Option<NodeGuard>,
}

/// None if the tensor lives elsewhere or is not `f32`: then the operation has to be composed of Burn's.
/// Whoever wants to overwrite the numbers drops the tensor first.
pub(crate) fn input<const D: usize>(tensor: &Tensor<D>) -> Option<Input> {
    if tensor.dtype() != DType::F32 {
        return None;
    }
    if let Ok(tracked) = tensor.clone().try_into_primitive::<Autodiff<Flex>>() {
        let (primitive, node) = tracked.into_parts();
        return Some(Input { values: Values::new(primitive), node: Some(node) });
    }
    let primitive = tensor.clone().try_into_primitive::<Flex>().ok()?;
    Some(Input { values: Values::new(primitive), node: None })
}

/// What goes through a layer, and the layer's two parameters. None also if some are under autodiff and some are not.
pub(crate) fn layer<const D: usize, const W: usize>(
    x: &Tensor<D>,
    weight: &Tensor<W>,
    bias: &Tensor<1>,
) -> Option<[Input; 3]> {
    all_or_none([input(x)?, input(weight)?, input(bias)?])
}

/// None if some are under autodiff and some are not.
pub(crate) fn all_or_none<const N: usize>(inputs: [Input; N]) -> Option<[Input; N]> {
    let tracked = inputs.iter().filter(|input| input.node.is_some()).count();
    (tracked == 0 || tracked == N).then_some(inputs)
}

/// Indices below `limit` in host memory; none if one of them is not, for Burn to complain about.
pub(crate) fn indices<const D: usize>(tensor: &Tensor<D, Int>, limit: usize) -> Option<Vec<usize>> {
    let data = tensor.clone().try_into_data_as::<i64>().ok()?;
    let index = |&index: &i64| usize::try_from(index).ok().filter(|&index| index < limit);
    data.as_slice::<i64>().ok()?.iter().map(index).collect()
}

/// What an operation keeps for its backward pass, and that pass.
pub(crate) trait Rule<const N: usize>: Debug + Clone + Send + 'static {
    /// The gradients of the inputs, in their order. Those that are not `wanted` are ignored.
    fn gradients(self, upstream: Values, wanted: [bool; N]) -> [Option<Values>; N];
}

/// Makes `output` the result of an operation on `inputs`, which are all under autodiff or none of them.
pub(crate) fn attach<const N: usize, const D: usize, R: Rule<N>>(
    inputs: [Option<NodeGuard>; N],
    output: Values,
    rule: R,
) -> Tensor<D> {
    let inputs: Vec<NodeGuard> = inputs.into_iter().flatten().collect();
    let Ok(inputs) = <[NodeGuard; N]>::try_from(inputs) else {
        return Tensor::from_primitive::<Flex>(output.0);
    };
    let node = match Step::<R>(PhantomData).prepare::<NoCheckpointing>(inputs).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(rule, output.0),
        OpsKind::UnTracked(prepared) => prepared.finish(output.0),
    };
    Tensor::from_primitive::<Autodiff<Flex>>(node)
}

#[derive(Debug)]
struct Step<R>(PhantomData<R>);

impl<const N: usize, R: Rule<N>> Backward<Flex, N> for Step<R> {
    type State = R;

    fn backward(self, ops: Ops<R, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let upstream = Values::new(grads.consume::<Flex>(&ops.node));
        let wanted = ops.parents.each_ref().map(Option::is_some);
        for (parent, gradient) in ops.parents.into_iter().zip(ops.state.gradients(upstream, wanted)) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<Flex>(parent.id, gradient.0);
            }
        }
    }
}

/// Numbers in the order of their indices, all that there are behind them. Clones share.
#[derive(Debug, Clone)]
pub(crate) struct Values(FlexTensor);

impl Values {
    /// Copies what lies otherwise.
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

    /// Of the last dimension.
    pub(crate) fn width(&self) -> usize {
        self.0.layout().shape().to_vec().last().copied().unwrap_or(1)
    }

    pub(crate) fn get(&self) -> &[f32] {
        self.0.storage()
    }

    /// Copies first if they are shared.
    pub(crate) fn get_mut(&mut self) -> &mut [f32] {
        self.0.storage_mut()
    }
}

/// So many numbers are worth a thread's while.
pub(crate) const CHUNK: usize = 1 << 14;

/// Whole rows, about [`CHUNK`] numbers of them.
pub(crate) fn chunk_of_rows(width: usize) -> usize {
    (CHUNK / width.max(1)).max(1) * width.max(1)
}

/// Adds up what the chunks of rows gave, `width` numbers each, in their order.
pub(crate) fn sum_of_chunks(chunks: Vec<Vec<f32>>, width: usize) -> Vec<f32> {
    let mut sums = vec![0.0; width];
    for chunk in chunks {
        for (sum, more) in sums.iter_mut().zip(chunk) {
            *sum += more;
        }
    }
    sums
}
