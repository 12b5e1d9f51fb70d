//! What a self-test's report says about the program and the machine. No host name, user or path.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use sysinfo::System;

/// Rows of a table: what, and its value.
pub(super) fn rows() -> Vec<(&'static str, String)> {
    let unknown = || "unknown".to_owned();
    let system = System::long_os_version().unwrap_or_else(|_| unknown());
    let kernel = System::kernel_version().unwrap_or_else(|_| unknown());
    let features = features();
    vec![
        ("hetseq", hetseq_train::VERSION.to_owned()),
        ("features", if features.is_empty() { "none (CPUs only)".to_owned() } else { features.join(", ") }),
        ("system", format!("{system}, kernel {kernel}, {}", std::env::consts::ARCH)),
        ("date", format!("{} (UTC)", date(now_s()))),
    ]
}

/// The features of this build that concern devices.
fn features() -> Vec<&'static str> {
    let all = [
        ("gpu", cfg!(feature = "gpu")),
        ("vulkan", cfg!(feature = "vulkan")),
        ("metal", cfg!(feature = "metal")),
        ("cuda", cfg!(feature = "cuda")),
        ("rocm", cfg!(feature = "rocm")),
        ("autotune", cfg!(feature = "autotune")),
    ];
    all.into_iter().filter(|(_, is_built_in)| *is_built_in).map(|(name, _)| name).collect()
}

/// The default file of the report.
pub(super) fn file_name() -> String {
    let host = System::host_name().unwrap_or_default();
    let host: String = host.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
    let host = if host.is_empty() { "machine".to_owned() } else { host };
    format!("hetseq-selftest-{host}-{}.md", date(now_s()))
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The day as `2026-11-18`. Counts from 1 March of year 0 in cycles of 400 years, so that a leap day
/// is the last of its year.
fn date(unix_s: u64) -> String {
    const DAYS_BEFORE_1970: u64 = 719_468;
    let days = unix_s / 86_400 + DAYS_BEFORE_1970;
    let (cycle, day_of_cycle) = (days / 146_097, days % 146_097);
    let year_of_cycle = (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = 400 * cycle + year_of_cycle + u64::from(month >= 10);
    let month = if month < 10 { month + 3 } else { month - 9 };
    format!("{year}-{month:02}-{day:02}")
}

/// Removes this machine's paths from a message: the directory of the test data and the home of the
/// user.
pub(super) fn without_paths(text: &str, data: &Path) -> String {
    let home = std::env::var("HOME").unwrap_or_default();
    let text = text.replace(&data.display().to_string(), "DATA");
    if home.len() > 1 { text.replace(&home, "~") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let known = [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_709_164_800, "2024-02-29"),
            (1_735_689_599, "2024-12-31"),
            (4_107_542_400, "2100-03-01"),
        ];
        for (seconds, expected) in known {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn paths_are_removed() {
        assert_eq!(without_paths("no /tmp/x/digits", Path::new("/tmp/x")), "no DATA/digits");
    }
}
