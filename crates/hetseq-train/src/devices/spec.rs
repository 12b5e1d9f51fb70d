//! Device names: `cpu` (one single-threaded device per core), `cpu:4` (four such), `cpu:2x8` (two with eight threads
//! each). Several are separated by commas.

use std::num::NonZeroUsize;

/// One device of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    pub threads: usize,
}

/// More than this many threads is a typing error.
const MOST: usize = 4096;

/// Parse `run.devices`; `cores` is how many this machine has.
pub fn parse_devices(text: &str, cores: NonZeroUsize) -> Result<Vec<DeviceSpec>, String> {
    let mut specs = Vec::new();
    for name in text.split(',').map(str::trim) {
        let (count, threads) = parse_one(name, cores.get()).ok_or_else(|| wrong(name))?;
        specs.extend(std::iter::repeat_n(DeviceSpec { threads }, count));
    }
    Ok(specs)
}

fn parse_one(name: &str, cores: usize) -> Option<(usize, usize)> {
    let rest = name.strip_prefix("cpu")?.trim();
    if rest.is_empty() {
        return Some((cores, 1));
    }
    let rest = rest.strip_prefix(':')?;
    let (count, threads) = match rest.split_once('x') {
        Some((count, threads)) => (number(count)?, number(threads)?),
        None => (number(rest)?, 1),
    };
    (count * threads <= MOST).then_some((count, threads))
}

fn number(text: &str) -> Option<usize> {
    text.trim().parse().ok().filter(|n| (1..=MOST).contains(n))
}

fn wrong(name: &str) -> String {
    format!(
        "unknown device `{name}`: say `cpu` (one single-threaded device per core), `cpu:4` (four of them) or `cpu:2x8` \
         (two devices of eight threads each)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_what_they_mean() {
        let parse = |text| {
            parse_devices(text, NonZeroUsize::new(3).unwrap())
                .map(|specs| specs.iter().map(|s| s.threads).collect::<Vec<_>>())
        };
        assert_eq!(parse("cpu").unwrap(), [1, 1, 1]);
        assert_eq!(parse("cpu:2").unwrap(), [1, 1]);
        assert_eq!(parse("cpu:2x8").unwrap(), [8, 8]);
        assert_eq!(parse("cpu:1 x 4, cpu:1").unwrap(), [4, 1]);
        for bad in ["", "gpu", "cpu:0", "cpu:x", "cpu:2x", "cpu:99999", "cpu:4096x2", "cpu2", "cpu:1,"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
