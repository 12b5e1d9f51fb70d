//! Reads a profile of the machines, which a run has measured at its start or a user has written.
//! For `plan` and `simulate`.

use std::path::Path;

use hetseq_balance::Profile;
use hetseq_train::suggest;

use crate::args::UsageError;

/// A minimal profile with all keys that matter.
pub(crate) const EXAMPLE: &str = r#"{
  "parameters": 110000000,
  "ranks": [
    {"host": "node-a", "devices": [{"name": "gpu:0", "tokens_per_s": 20000}], "link": {"bytes_per_s": 1.25e8}},
    {"host": "node-b", "devices": [{"name": "cpu:0", "tokens_per_s": 5000}], "link": {"bytes_per_s": 1.25e8}}
  ]
}"#;

/// An explanation of the keys, printed with the example.
pub(crate) const EXAMPLE_KEYS: &str = "parameters: size of the model, 4 bytes each on the wire unless exchange_bytes is set; tokens_per_s: training \
     speed of the device, padding included; bytes_per_s: 1.25e8 is 1 Gbit/s";

/// The length of samples if neither the command line nor the profile has one.
const DEFAULT_TOKENS: u32 = 128;

pub(crate) fn read(path: &Path) -> Result<Profile, UsageError> {
    let invalid = |reason: String| UsageError(format!("{reason}. A minimal profile:\n{EXAMPLE}\n({EXAMPLE_KEYS})"));
    let text = fs_err::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
    let mut deserializer = serde_json::Deserializer::from_str(&text);
    let profile: Profile = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let message = error.inner().to_string();
        let what = message.rsplit_once(" at line ").map_or(message.as_str(), |(what, _)| what);
        let line = error.inner().line();
        invalid(format!("{}:{line}: {}", path.display(), suggest(&error.path().to_string(), what)))
    })?;
    if profile.ranks.iter().all(|rank| rank.devices.is_empty()) {
        return Err(invalid(format!("{}: there is no rank with a device", path.display())));
    }
    Ok(profile)
}

/// The given length of samples, else the longest that was measured.
pub(crate) fn tokens_per_sample(profile: &Profile, given: Option<u32>) -> u32 {
    let devices = profile.ranks.iter().flat_map(|rank| &rank.devices);
    let measured = devices.flat_map(|device| device.table.points()).map(|point| point.tokens).max();
    given.or(measured).unwrap_or(DEFAULT_TOKENS)
}

/// `256 samples of 128 tokens`. Samples of one token, such as images, are printed without a length.
pub(crate) fn batch(samples: &str, tokens: u32) -> String {
    if tokens == 1 { format!("{samples} samples") } else { format!("{samples} samples of {tokens} tokens") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_a_profile() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.json");
        fs_err::write(&path, EXAMPLE).unwrap();
        let profile = read(&path).unwrap();
        assert_eq!((profile.ranks.len(), tokens_per_sample(&profile, None)), (2, DEFAULT_TOKENS));
        assert_eq!(tokens_per_sample(&profile, Some(7)), 7);
        // 100 samples of 100 tokens at 20,000 tokens per second.
        assert!((profile.ranks[0].devices[0].table.seconds(100, 100) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_wrong_key_is_named_with_its_line_and_the_nearest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.json");
        fs_err::write(&path, EXAMPLE.replace("parameters", "paramters")).unwrap();
        let error = read(&path).unwrap_err().0;
        assert!(error.contains("p.json:2: unknown key `paramters`. Did you mean `parameters`?"), "{error}");
        fs_err::write(&path, r#"{"ranks": []}"#).unwrap();
        assert!(read(&path).unwrap_err().0.contains("no rank with a device"));
    }
}
