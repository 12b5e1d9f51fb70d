//! Columns of text that line up, for `hetseq plan`, `simulate` and `report`.

pub(crate) struct Table {
    /// Of each column: whether it stands to the left.
    left: Vec<bool>,
    /// The first is the heading.
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A heading that begins with `<` stands to the left, as words do; numbers stand to the right.
    pub(crate) fn new<const N: usize>(headings: [&str; N]) -> Table {
        let left = headings.iter().map(|heading| heading.starts_with('<')).collect();
        let heading = headings.iter().map(|heading| heading.trim_start_matches('<').to_owned()).collect();
        Table { left, rows: vec![heading] }
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

/// `0.0834` as `8.3 %`; rounding leaves no `-0.0 %`.
pub(crate) fn percent(part: f64) -> String {
    let part = if part.abs() < 0.0005 { 0.0 } else { part };
    format!("{:.1} %", 100.0 * part)
}

/// Seconds of an update, with three digits that count: `0.412 s`, `12.3 s`, `8.40 ms`.
pub(crate) fn short_time(seconds: f64) -> String {
    match seconds {
        s if s < 0.1 => format!("{:.2} ms", 1e3 * s),
        s if s < 10.0 => format!("{s:.3} s"),
        s => format!("{s:.1} s"),
    }
}

/// A rate, with digits where there are few.
pub(crate) fn rate(per_s: f64) -> String {
    if per_s < 100.0 { format!("{per_s:.1}") } else { hetseq_metrics::thousands(per_s.round() as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_to_the_left_and_numbers_to_the_right() {
        let mut table = Table::new(["<host", "share", "<note"]);
        table.row(["a".into(), "12.5 %".into(), String::new()]);
        table.row(["längst".into(), "5 %".into(), "x".into()]);
        assert_eq!(table.lines(), ["host     share  note", "a       12.5 %", "längst     5 %  x"]);
    }

    #[test]
    fn figures() {
        assert_eq!([0.0084, 0.4123, 12.34].map(short_time), ["8.40 ms", "0.412 s", "12.3 s"]);
        assert_eq!([3.24, 1234.4].map(rate), ["3.2", "1,234"]);
        assert_eq!([0.0834, -1e-9].map(percent), ["8.3 %", "0.0 %"]);
    }
}
