//! Tables of text and formatted numbers, for `hetseq plan`, `simulate`, `report` and `prep
//! translate`.

/// Rows of text in aligned columns.
pub(crate) struct TextTable {
    /// Whether each column is left-aligned.
    left: Vec<bool>,
    /// The first row is the heading.
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with these headings. A column is left-aligned if its heading starts with `<`, else
    /// right-aligned.
    pub(crate) fn new<const N: usize>(headings: [&str; N]) -> TextTable {
        let left = headings.iter().map(|heading| heading.starts_with('<')).collect();
        let heading = headings.iter().map(|heading| heading.trim_start_matches('<').to_owned()).collect();
        TextTable { left, rows: vec![heading] }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..self.left.len()).map(|column| width(column).unwrap_or(0)).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).zip(&self.left).map(|((cell, &width), left)| match left {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }
}

/// `0.0834` as `8.3 %`; never `-0.0 %`.
pub(crate) fn percent(part: f64) -> String {
    let part = if part.abs() < 0.0005 { 0.0 } else { part };
    format!("{:.1} %", 100.0 * part)
}

/// Seconds of an update with three significant digits: `0.412 s`, `12.3 s`, `8.40 ms`.
pub(crate) fn short_time(seconds: f64) -> String {
    match seconds {
        s if s < 0.1 => format!("{:.2} ms", 1e3 * s),
        s if s < 10.0 => format!("{s:.3} s"),
        s => format!("{s:.1} s"),
    }
}

/// A rate, with a decimal below 100.
pub(crate) fn rate(per_s: f64) -> String {
    if per_s < 100.0 { format!("{per_s:.1}") } else { hetseq_metrics::thousands(per_s.round() as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_left_aligned_and_numbers_right_aligned() {
        let mut table = TextTable::new(["<host", "share", "<note"]);
        table.row(["a".into(), "12.5 %".into(), String::new()]);
        table.row(["längst".into(), "5 %".into(), "x".into()]);
        assert_eq!(table.lines(), ["host     share  note", "a       12.5 %", "längst     5 %  x"]);
    }

    #[test]
    fn numbers_are_formatted() {
        assert_eq!([0.0084, 0.4123, 12.34].map(short_time), ["8.40 ms", "0.412 s", "12.3 s"]);
        assert_eq!([3.24, 1234.4].map(rate), ["3.2", "1,234"]);
        assert_eq!([0.0834, -1e-9].map(percent), ["8.3 %", "0.0 %"]);
    }
}
