//! Reading a profile: what a run measured of its machines at the start, or what somebody wrote by hand.

use std::path::Path;

use hetseq_balance::Profile;
use hetseq_train::suggest;

use crate::args::UsageError;

/// As small as a profile can be, with all that matters.
pub(crate) const EXAMPLE: &str = r#"{
  "parameters": 110000000,
  "ranks": [
    {"host": "node-a", "devices": [{"name": "gpu:0", "tokens_per_s": 20000}], "line": {"bytes_per_s": 1.25e8}},
    {"host": "node-b", "devices": [{"name": "cpu:0", "tokens_per_s": 5000}], "line": {"bytes_per_s": 1.25e8}}
  ]
}"#;

/// What it is to say beside, so that nobody has to look it up.
pub(crate) const EXAMPLE_MEANS: &str = "exchange_bytes: of one gradient, 4 per parameter; tokens_per_s: what the device trains, padding counted; \
     bytes_per_s: 1.25e8 is 1 Gbit/s";

/// Where nothing says how long samples are.
const USUAL_TOKENS: u32 = 128;

pub(crate) fn read(path: &Path) -> Result<Profile, UsageError> {
    let wrong = |reason: String| UsageError(format!("{reason}. A small profile:\n{EXAMPLE}\n({EXAMPLE_MEANS})"));
    let text = fs_err::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let profile: Profile = serde_json::from_str(&text).map_err(|error| {
        let message = error.to_string();
        let what = message.rsplit_once(" at line ").map_or(message.as_str(), |(what, _)| what);
        wrong(format!("{}:{}: {}", path.display(), error.line(), suggest(what)))
    })?;
    if profile.ranks.iter().all(|rank| rank.devices.is_empty()) {
        return Err(wrong(format!("{}: there is no rank with a device in it", path.display())));
    }
    Ok(profile)
}

/// What was typed, else the longest that was measured.
pub(crate) fn tokens_per_sample(profile: &Profile, typed: Option<u32>) -> u32 {
    let devices = profile.ranks.iter().flat_map(|rank| &rank.devices);
    let measured = devices.flat_map(|device| device.table.points()).map(|point| point.tokens).max();
    typed.or(measured).unwrap_or(USUAL_TOKENS)
}

/// `256 samples of 128 tokens`; where a sample is one token, as an image is, that says nothing.
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
        assert_eq!((profile.ranks.len(), tokens_per_sample(&profile, None)), (2, USUAL_TOKENS));
        assert_eq!(tokens_per_sample(&profile, Some(7)), 7);
        // 20,000 tokens a second are as many samples of 100 tokens in half a second as it says.
        assert!((profile.ranks[0].devices[0].table.seconds(100, 100) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_wrong_key_is_named_with_its_line_and_the_nearest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.json");
        fs_err::write(&path, EXAMPLE.replace("parameters", "paramters")).unwrap();
        let said = read(&path).unwrap_err().0;
        assert!(said.contains("p.json:2: unknown key `paramters`. Did you mean `parameters`?"), "{said}");
        fs_err::write(&path, r#"{"ranks": []}"#).unwrap();
        assert!(read(&path).unwrap_err().0.contains("no rank with a device"));
    }
}
