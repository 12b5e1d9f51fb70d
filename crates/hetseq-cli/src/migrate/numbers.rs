//! Parses numbers as Python does, which the old programs use: `1e-4`, `[0.25, 0.1]`, `(0.9, 0.98)`.

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

/// An integer, which may be negative.
pub(super) fn integer(text: &str) -> Option<i64> {
    let number = one(text)?;
    (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
}

/// A float as TOML, with a decimal point or, if it is small, an exponent.
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
    fn numbers_are_parsed_like_in_python() {
        assert_eq!(list("(0.9, 0.98)"), Some(vec![0.9, 0.98]));
        assert_eq!(list("[0.25,0.1,]"), Some(vec![0.25, 0.1]));
        assert_eq!((one("1e-4"), one("1,2"), one("x"), one("")), (Some(1e-4), None, None, None));
        let integers = ["4", "-1", "1.5", "(4,)"].map(integer);
        assert_eq!(integers, [Some(4), Some(-1), None, Some(4)]);
        assert_eq!([25.0, 0.01, 1.5e-4, 0.0].map(float), ["25.0", "0.01", "1.5e-4", "0.0"]);
    }
}
