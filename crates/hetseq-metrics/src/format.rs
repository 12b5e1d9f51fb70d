//! Human-readable numbers and times, and the median.

use std::time::{SystemTime, UNIX_EPOCH};

/// Formats `8412` as `8,412`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number of things: `1 shard`, `8,412 shards`.
pub fn count(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", thousands(n), if n == 1 { "" } else { "s" })
}

/// Formats seconds as `0.42 s`, `7.3 s`, `3 min 20 s`, `2 h 05 min`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{s:.2} s"),
        s if s < 60.0 => format!("{s:.1} s"),
        s if s < 3600.0 => format!("{} min {:02} s", s as u64 / 60, s as u64 % 60),
        s => format!("{} h {:02} min", s as u64 / 3600, s as u64 % 3600 / 60),
    }
}

/// Formats a time that is left or has passed as a clock: `0:42`, `12:05`, `2:05:09`, `3 d 04 h`.
pub(crate) fn clock(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match s {
        0..3600 => format!("{}:{:02}", s / 60, s % 60),
        3600..86_400 => format!("{}:{:02}:{:02}", s / 3600, s % 3600 / 60, s % 60),
        _ => format!("{} d {:02} h", s / 86_400, s % 86_400 / 3600),
    }
}

/// Formats a speed with three digits, or all digits before the point: `0.0312`, `4.71`, `38.2`,
/// `1,234`. A slow model never has the speed 0.
pub fn rate(per_second: f64) -> String {
    match per_second {
        r if !r.is_finite() || r <= 0.0 => "0".to_owned(),
        r if r >= 99.95 => thousands(r.round() as u64),
        r => {
            let decimals = (1.0 - r.log10().floor()).clamp(1.0, 6.0) as usize + usize::from(r < 10.0);
            format!("{r:.decimals$}")
        }
    }
}

/// A point in time in UTC, as RFC 3339 has it, to the second: `2026-11-18T16:08:21Z`.
pub(crate) fn utc_seconds(time: SystemTime) -> String {
    let (date, clock, _) = utc_parts(time);
    format!("{date}T{clock}Z")
}

/// The same, to the millisecond: `2026-11-18T16:08:21.042Z`.
pub(crate) fn utc_millis(time: SystemTime) -> String {
    let (date, clock, millis) = utc_parts(time);
    format!("{date}T{clock}.{millis:03}Z")
}

/// Date, time of day and milliseconds. Times before 1970 count as 1970.
fn utc_parts(time: SystemTime) -> (String, String, u32) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date_of(days);
    let clock = format!("{:02}:{:02}:{:02}", second / 3600, second % 3600 / 60, second % 60);
    (format!("{year:04}-{month:02}-{day:02}"), clock, since.subsec_millis())
}

/// Year, month and day of the month, `days` days after 1 January 1970 in the Gregorian calendar.
fn date_of(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // Whole cycles of 400 years first: they all have the same number of days.
    let (mut year, mut left) = (1970 + 400 * (days / 146_097), days % 146_097);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

/// Formats bytes as `512 B`, `2.5 MB`, `1.3 GB`, in powers of 1,000.
pub fn bytes(n: u64) -> String {
    let units = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match units.iter().find(|(_, size)| n as f64 >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", n as f64 / size),
        None => format!("{n} B"),
    }
}

/// Returns the middle value; NaN if there is none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_outliers() {
        assert_eq!(median(vec![3.0, 1e9, 1.0]), 3.0);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn times_are_in_utc() {
        let at = |millis| UNIX_EPOCH + std::time::Duration::from_millis(millis);
        assert_eq!(utc_millis(at(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc_millis(at(951_782_400_042)), "2000-02-29T00:00:00.042Z");
        assert_eq!(utc_seconds(at(1_709_251_199_999)), "2024-02-29T23:59:59Z");
        assert_eq!(utc_seconds(at(4_107_542_400_000)), "2100-03-01T00:00:00Z");
        // 400 years and a day later.
        assert_eq!(utc_seconds(at(1000 * 86_400 * 146_098)), "2370-01-02T00:00:00Z");
    }

    #[test]
    fn slow_speeds_have_digits() {
        let speeds = [0.0, 0.031_26, 0.5, 4.708, 38.24, 99.97, 1234.4, f64::NAN];
        assert_eq!(speeds.map(rate), ["0", "0.0313", "0.500", "4.71", "38.2", "100", "1,234", "0"]);
        assert_eq!([42.0, 725.9, 7509.0, 273_600.0].map(clock), ["0:42", "12:05", "2:05:09", "3 d 04 h"]);
    }

    #[test]
    fn numbers_are_formatted_for_people() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([512, 2_500_000, 1_340_000_000].map(bytes), ["512 B", "2.5 MB", "1.3 GB"]);
        assert_eq!([0.42, 7.34, 200.0, 7500.0].map(duration), ["0.42 s", "7.3 s", "3 min 20 s", "2 h 05 min"]);
    }
}
