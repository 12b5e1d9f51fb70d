//! Human-readable numbers, and the median.

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

/// Formats seconds as `0.42 s`, `7.3 s`, `3 min 20 s`, `2 h 05 min`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{s:.2} s"),
        s if s < 60.0 => format!("{s:.1} s"),
        s if s < 3600.0 => format!("{} min {:02} s", s as u64 / 60, s as u64 % 60),
        s => format!("{} h {:02} min", s as u64 / 3600, s as u64 % 3600 / 60),
    }
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
    fn numbers_are_formatted_for_people() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([512, 2_500_000, 1_340_000_000].map(bytes), ["512 B", "2.5 MB", "1.3 GB"]);
        assert_eq!([0.42, 7.34, 200.0, 7500.0].map(duration), ["0.42 s", "7.3 s", "3 min 20 s", "2 h 05 min"]);
    }
}
