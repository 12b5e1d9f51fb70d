//! `run.precision`: the dtype in which devices compute matrix products.

use hetseq_kernels::Dtype;
use serde::{Deserialize, Serialize};

/// The value of `run.precision`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PrecisionPolicy {
    /// The lowest precision that a GPU supports; `f32` on a CPU, which gains nothing from less.
    Auto,
    /// The same dtype on all devices whose name does not give one.
    Fixed(Dtype),
}

impl Default for PrecisionPolicy {
    fn default() -> Self {
        PrecisionPolicy::Fixed(Dtype::F32)
    }
}

impl TryFrom<String> for PrecisionPolicy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "auto" => Ok(PrecisionPolicy::Auto),
            text => text.parse().map(PrecisionPolicy::Fixed).map_err(|reason| format!("{reason}, or auto")),
        }
    }
}

impl From<PrecisionPolicy> for String {
    fn from(policy: PrecisionPolicy) -> String {
        match policy {
            PrecisionPolicy::Auto => "auto".to_owned(),
            PrecisionPolicy::Fixed(dtype) => dtype.to_string(),
        }
    }
}
