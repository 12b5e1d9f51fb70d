//! The configs and tensors of recorded models.

use safetensors::SafeTensors;
use serde_json::Value;

/// A recorded config with `changes`, as JSON.
pub(crate) fn with_changes(mut config: Value, changes: &[(&str, Value)]) -> String {
    for (key, value) in changes {
        config[key] = value.clone();
    }
    config.to_string()
}

/// The values of a recorded tensor.
pub(crate) fn tensor(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let bytes = file.tensor(name).unwrap().data().as_chunks::<4>().0;
    bytes.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}
