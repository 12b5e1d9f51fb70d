//! Activation recomputation (gradient checkpointing): less memory for more time. Inner values of
//! parts of a network are not kept for the backward pass but computed again.
//!
//! A model runs such a part through a [`Tape`], which keeps only its input. The backward pass must
//! run through the same tape. Randomness in a part must be keyed, so that both runs are equal.
//! Gradients are bit-identical to those without recomputation.

use std::cell::RefCell;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};

/// The recomputed parts of one forward pass, in order.
#[derive(Default)]
pub struct Tape {
    parts: RefCell<Vec<Part>>,
}

struct Part {
    input: Tensor<3>,
    /// A leaf, at which the backward pass of the later parts ends.
    output: Tensor<3>,
    recompute: Box<dyn Fn(Tensor<3>) -> Tensor<3>>,
}

impl Tape {
    /// Runs `forward(part, input)` without keeping its inner values. `part` is a module of the
    /// model; `input` must be on an autodiff device.
    ///
    /// A frozen part with an untracked input has no gradient: it is not recomputed, and its output
    /// is untracked, too.
    pub fn run<M: Module + 'static>(
        &self,
        part: &M,
        input: Tensor<3>,
        forward: impl Fn(&M, Tensor<3>) -> Tensor<3> + 'static,
    ) -> Tensor<3> {
        if !input.is_tracked() && !is_trainable(part) {
            return forward(part, input);
        }
        // Untracked, but on the autodiff device, where operations are composed differently and
        // round differently. `detach` would leave the output of an earlier part as a tracked leaf.
        let untracked = input.clone().without_autodiff().autodiff();
        let output = forward(&part.clone().no_grad(), untracked).require_grad();
        // The clone shares the parameters' leaves, so their gradients are found under the model's
        // ids.
        let part = part.clone();
        let recompute = Box::new(move |input| forward(&part, input));
        self.parts.borrow_mut().push(Part { input, output: output.clone(), recompute });
        output
    }

    /// Runs the backward pass of `loss`, part by part from the end.
    ///
    /// `take` is called several times and must remove the parameters' gradients; a parameter's
    /// gradient is the sum over all calls. A loss that depends on no parameter, such as that of a
    /// micro-batch without masked words, has no gradients, and `take` is not called.
    pub fn backward(self, loss: &Tensor<1>, mut take: impl FnMut(&mut Gradients)) {
        // Burn's backward pass would panic.
        if !loss.is_tracked() {
            return;
        }
        let mut passes = vec![loss.backward()];
        passes.iter_mut().for_each(&mut take);
        for Part { input, output, recompute } in self.parts.into_inner().into_iter().rev() {
            // The sum over all later passes. `None` if the loss does not depend on this part.
            let upstream = passes.iter_mut().filter_map(|pass| output.grad_remove(pass)).reduce(|a, b| a + b);
            let Some(upstream) = upstream else { continue };
            let mut pass = (recompute(input) * upstream).sum().backward();
            take(&mut pass);
            passes.push(pass);
        }
    }
}

/// Whether a parameter of the module requires a gradient.
fn is_trainable<M: Module>(part: &M) -> bool {
    struct Search(bool);
    impl ModuleVisitor for Search {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 |= param.is_require_grad();
        }
    }
    let mut search = Search(false);
    part.visit(&mut search);
    search.0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::Mutex;

    use burn::tensor::Device;

    use super::*;
    use crate::layers::Linear;

    #[test]
    fn a_loss_without_parameters_has_no_gradients() {
        let device = Device::flex().autodiff();
        Tape::default().backward(&Tensor::zeros([1], &device), |_| panic!("there are no gradients to take"));
        let tape = Tape::default();
        let layer = Linear::new(3, 3, &device);
        let _unused = tape.run(&layer, Tensor::<3>::ones([2, 2, 3], &device), Linear::forward);
        tape.backward(&(Tensor::zeros([1], &device) * 0.5), |_| panic!("there are no gradients to take"));
    }

    #[test]
    fn inner_values_are_kept_only_while_recomputing() {
        let device = Device::flex().autodiff();
        let layer = Linear::new(3, 3, &device);
        let tracked = Arc::new(Mutex::new(Vec::new()));
        let observed = |tape: &Tape, x: Tensor<3>| {
            let tracked = tracked.clone();
            tape.run(&layer, x, move |layer: &Linear, x| {
                let output = layer.forward(x);
                tracked.lock().unwrap().push(output.is_tracked());
                output
            })
        };
        let tape = Tape::default();
        // The second part starts at the leaf at which the first ends.
        let input = Tensor::<3>::ones([2, 2, 3], &device);
        let output = observed(&tape, observed(&tape, input));
        assert_eq!(*tracked.lock().unwrap(), [false, false]);
        let mut bias = 0.0;
        tape.backward(&output.sum(), |pass| {
            let gradient = layer.bias.val().grad_remove(pass);
            bias += gradient.map_or(0.0, |gradient| gradient.into_data().try_to_vec::<f32>().unwrap()[0]);
        });
        assert_eq!(*tracked.lock().unwrap(), [false, false, true, true]);
        // The second part has one per position, of four. Its weights are zero, so the first part
        // has none.
        assert_eq!(bias, 4.0);
    }

    #[test]
    fn frozen_parts_below_all_trainable_ones_have_no_backward_pass() {
        let device = Device::flex().autodiff();
        let (trainable, frozen) = (Linear::new(3, 3, &device), Linear::new(3, 3, &device).no_grad());
        let input = || Tensor::<3>::ones([2, 2, 3], &device);
        let tape = Tape::default();
        let below = tape.run(&frozen, input(), Linear::forward);
        assert!(!below.is_tracked() && tape.parts.borrow().is_empty());
        // Above a trainable part, the gradient passes through.
        let output = tape.run(&frozen, tape.run(&trainable, below, Linear::forward), Linear::forward);
        assert!(output.is_tracked() && tape.parts.borrow().len() == 2);
        let (mut of_trainable, mut of_frozen) = (0, 0);
        tape.backward(&output.sum(), |pass| {
            of_trainable += usize::from(trainable.bias.val().grad_remove(pass).is_some());
            of_frozen += usize::from(frozen.bias.val().grad_remove(pass).is_some());
        });
        assert_eq!((of_trainable, of_frozen), (1, 0));
        // With frozen parts only there is nothing to differentiate.
        let tape = Tape::default();
        let loss = tape.run(&frozen, input(), Linear::forward).sum();
        tape.backward(&loss, |_| panic!("there are no gradients to take"));
    }
}
