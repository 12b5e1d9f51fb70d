//! Floating-point types that users can choose: for matrix products on a device, for gradients on
//! the network, and for exported weights.

use std::fmt;
use std::str::FromStr;

use burn::tensor::FloatDType;
use serde::{Deserialize, Serialize};

/// A floating-point type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    #[default]
    F32,
    /// 11 bits of precision and a range from about 1e-7 to 65,504: gradients need a loss scale.
    F16,
    /// 8 bits of precision and the range of `f32`.
    Bf16,
}

impl Dtype {
    pub const ALL: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

    /// The type to which `f32` operands are cast. `None` if no cast is needed.
    pub fn cast_to(self) -> Option<FloatDType> {
        match self {
            Dtype::F32 => None,
            Dtype::F16 => Some(FloatDType::F16),
            Dtype::Bf16 => Some(FloatDType::BF16),
        }
    }

    /// Size of one value.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        })
    }
}

impl FromStr for Dtype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Dtype::ALL.into_iter().find(|dtype| dtype.to_string() == text);
        found.ok_or_else(|| format!("unknown dtype `{text}`: use f32, f16 or bf16"))
    }
}
