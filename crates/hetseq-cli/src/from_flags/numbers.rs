//! Numbers as the other programs take them, which is as Python reads them: `1e-4`, `[0.25, 0.1]`, `(0.9, 0.98)`.

/// One number or a list of them.
pub(super) fn list(text: &str) -> Option<Vec<f64>> {
    let inside = text.trim().trim_start_matches(['(', '[']).trim_end_matches([')', ']']);
    let numbers = inside.split(',').map(str::trim).filter(|part| !part.is_empty());
    let numbers: Option<Vec<f64>> =
        numbers.map(|part| part.parse().ok().filter(|value: &f64| value.is_finite())).collect();
    numbers.filter(|numbers| !numbers.is_empty())
}

pub(super) fn one(text: &str) -> Option<f64> {
    match list(text)?.as_slice() {
        [number] => Some(*number),
        _ => None,
    }
}

/// A whole number, also one below zero.
pub(super) fn whole(text: &str) -> Option<i64> {
    let number = one(text)?;
    (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
}

/// As it stands in TOML, where a number with a fraction needs its point, and as people write small ones.
pub(super) fn float(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-3 {
        return format!("{value:e}");
    }
    toml::Value::Float(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_python_reads_them() {
        assert_eq!(list("(0.9, 0.98)"), Some(vec![0.9, 0.98]));
        assert_eq!(list("[0.25,0.1,]"), Some(vec![0.25, 0.1]));
        assert_eq!((one("1e-4"), one("1,2"), one("x"), one("")), (Some(1e-4), None, None, None));
        assert_eq!((whole("4"), whole("-1"), whole("1.5"), whole("(4,)")), (Some(4), Some(-1), None, Some(4)));
        assert_eq!([25.0, 0.01, 1.5e-4, 0.0].map(float), ["25.0", "0.01", "1.5e-4", "0.0"]);
    }
}
