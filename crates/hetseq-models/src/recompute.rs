//! Time for memory: parts of a network whose inner values are not kept for the backward pass but computed once more in it.
//!
//! A model runs such a part through a [`Tape`], which keeps only what went in; whoever runs the backward pass runs it through
//! the tape as well. What is random in a part must be keyed, so that it comes out the same the second time. Each gradient is
//! that of the plain way, bit for bit.

use std::cell::RefCell;

use burn::module::Module;
use burn::tensor::{Gradients, Tensor};

/// The parts of one forward pass, in the order in which they ran.
#[derive(Default)]
pub struct Tape {
    parts: RefCell<Vec<Part>>,
}

struct Part {
    input: Tensor<3>,
    /// A leaf: where the backward pass of what follows ends.
    output: Tensor<3>,
    again: Box<dyn Fn(Tensor<3>) -> Tensor<3>>,
}

impl Tape {
    /// Runs `forward(part, input)` without keeping its inner values. `part` is one of the model's modules, `input` is tracked.
    pub fn run<M: Module + 'static>(
        &self,
        part: &M,
        input: Tensor<3>,
        forward: impl Fn(&M, Tensor<3>) -> Tensor<3> + 'static,
    ) -> Tensor<3> {
        // Without gradients, but on the device that has them: there operations are made of others, and round differently.
        // Not `detach`, which would leave the output of an earlier part a leaf to be tracked.
        let untracked = input.clone().without_autodiff().autodiff();
        let output = forward(&part.clone().no_grad(), untracked).require_grad();
        // The clone shares its parameters' leaves, so their gradients are found where the model's are.
        let part = part.clone();
        let again = Box::new(move |input| forward(&part, input));
        self.parts.borrow_mut().push(Part { input, output: output.clone(), again });
        output
    }

    /// The backward pass of `loss`, part by part from the end. `take` is called several times and takes the gradients of the
    /// parameters out; a parameter's gradient is the sum of what it is handed. A loss that depends on no parameter, as that of
    /// a micro-batch without a masked word, has no gradients: `take` is not called.
    pub fn backward(self, loss: &Tensor<1>, mut take: impl FnMut(&mut Gradients)) {
        // Burn would panic.
        if !loss.is_tracked() {
            return;
        }
        let mut passes = vec![loss.backward()];
        passes.iter_mut().for_each(&mut take);
        for Part { input, output, again } in self.parts.into_inner().into_iter().rev() {
            // From everything behind it; nothing if the loss does not depend on it.
            let upstream = passes.iter_mut().filter_map(|pass| output.grad_remove(pass)).reduce(|a, b| a + b);
            let Some(upstream) = upstream else { continue };
            let mut pass = (again(input) * upstream).sum().backward();
            take(&mut pass);
            passes.push(pass);
        }
    }
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
    fn nothing_inside_is_kept_until_it_is_computed_again() {
        let device = Device::flex().autodiff();
        let layer = Linear::new(3, 3, &device);
        let kept = Arc::new(Mutex::new(Vec::new()));
        let watched = |tape: &Tape, x: Tensor<3>| {
            let kept = kept.clone();
            tape.run(&layer, x, move |layer: &Linear, x| {
                let output = layer.forward(x);
                kept.lock().unwrap().push(output.is_tracked());
                output
            })
        };
        let tape = Tape::default();
        // The second part begins at the leaf that the first one ends in.
        let input = Tensor::<3>::ones([2, 2, 3], &device);
        let output = watched(&tape, watched(&tape, input));
        assert_eq!(*kept.lock().unwrap(), [false, false]);
        let mut bias = 0.0;
        tape.backward(&output.sum(), |pass| {
            let gradient = layer.bias.val().grad_remove(pass);
            bias += gradient.map_or(0.0, |gradient| gradient.into_data().try_to_vec::<f32>().unwrap()[0]);
        });
        assert_eq!(*kept.lock().unwrap(), [false, false, true, true]);
        // Of the second part one for each of four positions; its weights are zero, so nothing comes to the first.
        assert_eq!(bias, 4.0);
    }
}
