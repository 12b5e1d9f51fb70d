//! Values that must be equal on all ranks before a run may start, and their comparison.
//!
//! The trainer fills it (config keys, data fingerprint, version and build of the program, layout
//! hash); rank 0 compares it during the rendezvous. It is not for settings that may differ between
//! machines, such as paths, devices or threads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::shown;

/// Longer keys and values are cut in messages; they are compared in full.
const SHOWN_BYTES: usize = 256;

/// Named values that every rank of a run must share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    values: BTreeMap<String, String>,
}

/// A key whose value differs between rank 0 and another rank; `None` means the key is missing
/// there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Difference {
    pub(crate) key: String,
    pub(crate) on_zero: Option<String>,
    pub(crate) on_other: Option<String>,
}

impl Difference {
    /// Cuts key and values for display.
    pub(crate) fn shorten(&mut self) {
        let texts = [Some(&mut self.key), self.on_zero.as_mut(), self.on_other.as_mut()];
        for text in texts.into_iter().flatten() {
            *text = shown(text, SHOWN_BYTES);
        }
    }
}

impl Identity {
    /// An empty identity, which matches any other empty one.
    pub fn new() -> Identity {
        Identity::default()
    }

    /// Adds or replaces one value.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl ToString) -> Identity {
        self.values.insert(key.into(), value.to_string());
        self
    }

    /// Returns every key whose value differs, in key order. `self` is the identity of rank 0.
    pub(crate) fn differences(&self, other: &Identity) -> Vec<Difference> {
        let keys: std::collections::BTreeSet<&String> = self.values.keys().chain(other.values.keys()).collect();
        keys.into_iter()
            .filter(|key| self.values.get(*key) != other.values.get(*key))
            .map(|key| Difference {
                key: key.clone(),
                on_zero: self.values.get(key).cloned(),
                on_other: other.values.get(key).cloned(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_changed_and_absent_keys() {
        let zero = Identity::new().with("optim.lr", 0.1).with("seed", 7).with("only.zero", "a");
        let other = Identity::new().with("optim.lr", 0.2).with("seed", 7).with("only.other", "b");
        let found: Vec<_> = zero.differences(&other).into_iter().map(|d| (d.key, d.on_zero, d.on_other)).collect();
        let text = |s: &str| Some(s.to_owned());
        assert_eq!(
            found,
            vec![
                ("only.other".to_owned(), None, text("b")),
                ("only.zero".to_owned(), text("a"), None),
                ("optim.lr".to_owned(), text("0.1"), text("0.2")),
            ]
        );
        assert!(zero.differences(&zero.clone()).is_empty());
    }
}
