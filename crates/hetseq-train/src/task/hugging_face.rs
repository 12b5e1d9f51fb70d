//! Exchange of weights with other programs. Optional: a task returns its implementation from
//! `Task::hugging_face`. Used when a run starts, when it saves, and by `hetseq eval`.

use std::path::Path;

/// What makes a checkpoint a model directory of another program, and such a directory a start.
pub trait HuggingFace: Send + Sync {
    /// Names and contents of files to store next to `model.safetensors` in every checkpoint: a
    /// `config.json`, a tokenizer. They must be equal on all ranks.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        Vec::new()
    }

    /// Initial weights, instead of random ones: a Hugging Face directory, or a safetensors or
    /// PyTorch file.
    fn init_from(&self) -> Option<&Path> {
        None
    }

    /// Maps the name of a tensor in such a file to its name in this model. With `None` the tensor
    /// is ignored.
    fn parameter_name(&self, theirs: &str) -> Option<String> {
        Some(theirs.to_owned())
    }

    /// Whether this parameter may be missing in [`HuggingFace::init_from`]. It then starts with
    /// random values.
    fn allow_missing(&self, _name: &str) -> bool {
        false
    }
}

/// For tasks without such an exchange.
pub(super) struct NoInterop;

impl HuggingFace for NoInterop {}
