//! What the trainer asks of a model beyond being a Burn module: how each parameter starts.
//!
//! Parameters are initialised on the host, keyed by their name, never by Burn's initialisers: the same seed gives the
//! same model on every device, in whatever order the layers are built.

use burn::module::Module;
use hetseq_random::Key;

/// A model that can be trained. Build it with any values (zeros are fine): the trainer fills in the parameters.
pub trait Network: Module {
    /// How the parameter `name` (a path such as `conv1.weight`) starts; see [`Init::for_rectifiers`].
    fn init(&self, name: &str, shape: &[usize]) -> Init {
        Init::for_rectifiers(name, shape)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    Constant(f32),
    Normal {
        std: f64,
    },
    /// Normal, except for one row of the table (rows are `width` wide), which is zero: the embedding of padding.
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
    /// Suits networks of rectifiers: biases zero, norm weights one, all else normal with variance 2 / fan-in
    /// (He et al., 2015).
    pub fn for_rectifiers(name: &str, shape: &[usize]) -> Init {
        if name.ends_with("bias") {
            return Init::Constant(0.0);
        }
        match shape {
            [] | [_] => Init::Constant(1.0),
            // [out, in, kernel...], as PyTorch lays weights out.
            [_, rest @ ..] => Init::Normal { std: (2.0 / rest.iter().product::<usize>().max(1) as f64).sqrt() },
        }
    }

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
