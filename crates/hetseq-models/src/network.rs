//! The [`Network`] trait: what the trainer needs of a model besides being a Burn module, namely the
//! initial value of each parameter.
//!
//! Parameters are initialised on the host and keyed by name, never by Burn's initialisers. The same
//! seed gives the same model on every device, in any order of building the layers.

use burn::module::Module;
use hetseq_random::Key;

/// A model that can be trained. Build it with any values (zeros are fine): the trainer sets the
/// parameters.
pub trait Network: Module {
    /// Initialisation of the parameter `name`, a path such as `conv1.weight`. By default
    /// [`Init::kaiming`].
    fn init(&self, name: &str, shape: &[usize]) -> Init {
        Init::kaiming(name, shape)
    }
}

/// Initialisation of a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    Constant(f32),
    Normal {
        std: f64,
    },
    /// Normal, except for one row (of `width` values) of the table, which is zero: the embedding of
    /// padding.
    NormalExceptRow {
        std: f64,
        width: usize,
        row: usize,
    },
    /// Uniform in [-bound, bound).
    Uniform {
        bound: f32,
    },
}

impl Init {
    /// Kaiming initialisation for networks with ReLU (He et al., 2015): biases zero, norm weights
    /// one, others normal with variance 2 / fan-in.
    pub fn kaiming(name: &str, shape: &[usize]) -> Init {
        if name.ends_with("bias") {
            return Init::Constant(0.0);
        }
        match shape {
            [] | [_] => Init::Constant(1.0),
            // [out, in, kernel...], PyTorch's layout.
            [_, rest @ ..] => Init::Normal { std: (2.0 / rest.iter().product::<usize>().max(1) as f64).sqrt() },
        }
    }

    /// Writes the initial values to `out`.
    pub fn fill(self, key: Key, out: &mut [f32]) {
        match self {
            Init::Constant(value) => out.fill(value),
            Init::Normal { std } => {
                for (i, x) in out.iter_mut().enumerate() {
                    *x = (f64::from(key.normal(i as u64)) * std) as f32;
                }
            }
            Init::NormalExceptRow { std, width, row } => {
                Init::Normal { std }.fill(key, out);
                out.iter_mut().skip(row * width).take(width).for_each(|x| *x = 0.0);
            }
            Init::Uniform { bound } => {
                for (i, x) in out.iter_mut().enumerate() {
                    *x = key.between(i as u32, -bound, bound);
                }
            }
        }
    }
}
