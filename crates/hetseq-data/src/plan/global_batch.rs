//! The global batch size as written in a config: `256`, `"256 sequences"` or `"4096 tokens"`.
//!
//! Parsing and formatting only; [`plan`](crate::plan) applies it. Read by the config.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::error::DataError;

/// The size of one update, over all machines together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GlobalBatch {
    /// A number of samples; the last update of an epoch may have fewer.
    Sequences(usize),
    /// The largest number of tokens after padding (longest sample x samples). A sample longer than
    /// that forms an update by itself.
    Tokens(usize),
}

impl fmt::Display for GlobalBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GlobalBatch::Sequences(n) => write!(f, "{n} sequences"),
            GlobalBatch::Tokens(n) => write!(f, "{n} tokens"),
        }
    }
}

impl FromStr for GlobalBatch {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        let bad = |reason| DataError::BadGlobalBatch { text: text.to_owned(), reason };
        let mut words = text.split_whitespace();
        let number = words.next().ok_or_else(|| bad("it is empty"))?;
        let unit = words.next().unwrap_or("sequences");
        if words.next().is_some() {
            return Err(bad("it has more than a number and a unit"));
        }
        // `4_096` is allowed, as in TOML.
        let number: usize = number
            .replace('_', "")
            .parse()
            .map_err(|_| bad("it does not start with an integer, or the integer is too large"))?;
        if number == 0 {
            return Err(bad("it must be at least 1"));
        }
        match unit {
            "sequence" | "sequences" => Ok(GlobalBatch::Sequences(number)),
            "token" | "tokens" => Ok(GlobalBatch::Tokens(number)),
            _ => Err(bad("the unit is neither `sequences` nor `tokens`")),
        }
    }
}

impl Serialize for GlobalBatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GlobalBatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Binary formats are not self-describing; they always hold the string.
        match deserializer.is_human_readable() {
            true => deserializer.deserialize_any(GlobalBatchVisitor),
            false => deserializer.deserialize_str(GlobalBatchVisitor),
        }
    }
}

struct GlobalBatchVisitor;

impl Visitor<'_> for GlobalBatchVisitor {
    type Value = GlobalBatch;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a global batch such as 256, \"256 sequences\" or \"4096 tokens\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<GlobalBatch, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, sequences: u64) -> Result<GlobalBatch, E> {
        self.visit_str(&sequences.to_string())
    }

    fn visit_i64<E: de::Error>(self, sequences: i64) -> Result<GlobalBatch, E> {
        self.visit_str(&sequences.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Config {
        batch: GlobalBatch,
    }

    fn read(toml: &str) -> Result<GlobalBatch, String> {
        toml::from_str::<Config>(toml).map(|c| c.batch).map_err(|e| e.to_string())
    }

    #[test]
    fn every_spelling_is_read() {
        for (toml, batch) in [
            ("batch = 256", GlobalBatch::Sequences(256)),
            ("batch = \"256\"", GlobalBatch::Sequences(256)),
            ("batch = \"256 sequences\"", GlobalBatch::Sequences(256)),
            ("batch = \"1 sequence\"", GlobalBatch::Sequences(1)),
            ("batch = \" 4_096  tokens \"", GlobalBatch::Tokens(4096)),
        ] {
            assert_eq!(read(toml), Ok(batch), "{toml}");
        }
    }

    #[test]
    fn invalid_values_are_refused_with_a_reason() {
        for (toml, reason) in [
            ("batch = 0", "at least 1"),
            ("batch = \"0 tokens\"", "at least 1"),
            ("batch = -3", "an integer"),
            ("batch = 1.5", "a global batch such as 256"),
            ("batch = true", "a global batch such as 256"),
            ("batch = \"\"", "empty"),
            ("batch = \"many tokens\"", "an integer"),
            ("batch = \"99999999999999999999999999\"", "too large"),
            ("batch = \"3 epochs\"", "neither `sequences` nor `tokens`"),
            ("batch = \"3 tokens each\"", "more than a number"),
        ] {
            let error = read(toml).unwrap_err();
            assert!(error.contains(reason), "{toml}: {error}");
        }
    }

    #[test]
    fn a_batch_survives_a_round_trip() {
        for batch in [GlobalBatch::Sequences(256), GlobalBatch::Tokens(4096)] {
            assert_eq!(batch.to_string().parse::<GlobalBatch>().unwrap(), batch);
            let config = Config { batch };
            assert_eq!(toml::from_str::<Config>(&toml::to_string(&config).unwrap()).unwrap(), config);
            assert_eq!(postcard::from_bytes::<Config>(&postcard::to_stdvec(&config).unwrap()).unwrap(), config);
        }
    }
}
