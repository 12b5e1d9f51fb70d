//! Intervals of validations and checkpoints, as written in a config. Parsing and formatting, and
//! whether one is over.

use std::fmt;
use std::str::FromStr;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An interval: `"10 updates"`, `"1 epoch"` or `"never"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Every {
    Updates(u64),
    Epochs(u64),
    Never,
}

impl Every {
    /// Whether the interval is over after `updates` updates in total, the last of which may have
    /// ended the epoch before `epoch`.
    pub fn is_due(self, updates: u64, epoch: u64, epoch_ended: bool) -> bool {
        match self {
            Every::Updates(n) => updates.is_multiple_of(n),
            Every::Epochs(n) => epoch_ended && epoch.is_multiple_of(n),
            Every::Never => false,
        }
    }
}

impl FromStr for Every {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not an interval: use \"10 updates\", \"1 epoch\" or \"never\"");
        if text.trim() == "never" {
            return Ok(Every::Never);
        }
        if text.trim().parse::<u64>().is_ok_and(|number| number > 0) {
            return Err(without_unit(text.trim()));
        }
        let (number, unit) = text.trim().split_once(char::is_whitespace).ok_or_else(wrong)?;
        let number: u64 = number.replace(['_', ','], "").parse().map_err(|_| wrong())?;
        match (number, unit.trim()) {
            (0, _) => Err(wrong()),
            (n, "update" | "updates") => Ok(Every::Updates(n)),
            (n, "epoch" | "epochs") => Ok(Every::Epochs(n)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Every::Updates(n) => write!(f, "{n} update{}", if *n == 1 { "" } else { "s" }),
            Every::Epochs(n) => write!(f, "{n} epoch{}", if *n == 1 { "" } else { "s" }),
            Every::Never => f.write_str("never"),
        }
    }
}

impl Serialize for Every {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Every {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EveryVisitor)
    }
}

struct EveryVisitor;

impl Visitor<'_> for EveryVisitor {
    type Value = Every;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an interval, such as \"10 updates\", \"1 epoch\" or \"never\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Every, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Every, E> {
        number.to_string().parse().map_err(E::custom)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Every, E> {
        number.to_string().parse().map_err(E::custom)
    }
}

fn without_unit(number: &str) -> String {
    format!("{number} has no unit: write \"{number} updates\" or \"{number} epochs\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Wanted {
        #[allow(dead_code)]
        every: Every,
    }

    #[test]
    fn intervals() {
        assert_eq!("10 updates".parse(), Ok(Every::Updates(10)));
        assert_eq!("1 epoch".parse(), Ok(Every::Epochs(1)));
        for bad in ["", "0", "0 updates", "ten updates", "5 minutes"] {
            assert!(bad.parse::<Every>().is_err(), "{bad}");
        }
        assert!(Every::Updates(5).is_due(10, 0, false));
        assert!(!Every::Updates(5).is_due(11, 1, true));
        assert!(Every::Epochs(2).is_due(11, 2, true));
        assert!(!Every::Epochs(2).is_due(11, 2, false));
        for number in ["every = 5", "every = '5'"] {
            let error = toml::from_str::<Wanted>(number).unwrap_err().to_string();
            assert!(error.contains("5 has no unit: write \"5 updates\" or \"5 epochs\""), "{error}");
        }
        let error = toml::from_str::<Wanted>("every = true").unwrap_err().to_string();
        assert!(error.contains("expected an interval, such as"), "{error}");
    }
}
