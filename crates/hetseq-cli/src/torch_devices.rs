//! PyTorch's devices, for `hetseq devices`: asks the engine of the Python package, in a process of its
//! own.

use hetseq_engine::Python;
use serde::{Deserialize, Serialize};

use crate::devices::{gib, output_of};

/// What the engine prints, or why there is nothing.
pub(crate) struct TorchDevices(Result<Found, String>);

#[derive(Debug, Serialize, Deserialize)]
struct Found {
    python: String,
    torch: Option<String>,
    #[serde(default)]
    devices: Vec<FoundDevice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct FoundDevice {
    name: String,
    description: Option<String>,
    memory_bytes: Option<u64>,
}

impl TorchDevices {
    /// Looks for PyTorch in `python`, by default `python3`.
    pub(crate) fn find(python: Option<&str>) -> Self {
        let text = output_of(&mut Python::new(python).list_devices());
        let found = text.and_then(|text| {
            let last = text.lines().last().unwrap_or_default();
            serde_json::from_str(last).map_err(|error| format!("its answer cannot be read: {error}"))
        });
        let found = found.map_err(|reason| {
            let program = python.unwrap_or("python3");
            let is_missing = reason.contains("No module named 'hetseq'") || reason.contains("No module named hetseq");
            let reason = if is_missing { "it has no package `hetseq`".to_owned() } else { reason };
            format!("not found by `{program}`: {reason}; for PyTorch models, see docs/pytorch.md")
        });
        TorchDevices(found)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        match &self.0 {
            Ok(found) => serde_json::json!(found),
            Err(reason) => serde_json::json!({ "error": reason }),
        }
    }

    /// One line per device.
    pub(crate) fn lines(&self) -> Vec<String> {
        let found = match &self.0 {
            Ok(Found { error: Some(reason), .. }) => return vec![reason.clone()],
            Err(reason) => return vec![reason.clone()],
            Ok(found) => found,
        };
        let (python, version) = (&found.python, found.torch.as_deref().unwrap_or("of unknown version"));
        let mut lines = vec![format!("PyTorch {version} in {python}")];
        for FoundDevice { name, description, memory_bytes } in &found.devices {
            let memory = memory_bytes.map_or_else(String::new, |bytes| format!(", {}", gib(bytes)));
            lines.push(format!("{name}: {}{memory}", description.as_deref().unwrap_or("a device")));
        }
        lines
    }
}
