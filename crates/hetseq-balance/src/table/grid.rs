//! Measured values as a full grid of lengths and numbers of samples.
//!
//! Time and memory limit which points are measured, so rows (lengths) may have different columns
//! (samples). Missing columns of a row are interpolated along the row, which does not change its
//! values. Called by the table only.

use super::CostPoint;
use super::curve::{Curve, interpolate};

/// The measured quantity, which decides how values are extrapolated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Quantity {
    /// By the last slope, at least in proportion; towards zero by the first slope, never below
    /// zero.
    Seconds,
    /// Overestimated: steeper than any measured slope, and not below the smallest measured value.
    Bytes,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Grid {
    lengths: Vec<u32>,
    counts: Vec<u32>,
    /// By length, then by count; never decreases along either.
    values: Vec<f64>,
    quantity: Quantity,
}

impl Default for Grid {
    fn default() -> Self {
        Grid { lengths: Vec::new(), counts: Vec::new(), values: Vec::new(), quantity: Quantity::Seconds }
    }
}

impl Grid {
    /// Builds a grid from points that are sorted by length and samples; points without a value are
    /// ignored.
    pub(super) fn new(points: &[CostPoint], value: impl Fn(&CostPoint) -> Option<f64>, quantity: Quantity) -> Grid {
        let known: Vec<(u32, u32, f64)> =
            points.iter().filter_map(|p| value(p).map(|value| (p.tokens, p.samples, value))).collect();
        let mut counts: Vec<u32> = known.iter().map(|&(_, samples, _)| samples).collect();
        counts.sort_unstable();
        counts.dedup();
        let rows: Vec<&[(u32, u32, f64)]> = known.chunk_by(|a, b| a.0 == b.0).collect();
        let lengths = rows.iter().map(|row| row[0].0).collect();

        let mut values = vec![0.0; rows.len() * counts.len()];
        let width = counts.len();
        // From the longest row: a missing value is at most that of longer samples.
        for (at, row) in rows.iter().enumerate().rev() {
            let samples: Vec<u32> = row.iter().map(|&(_, samples, _)| samples).collect();
            let mut highest = 0.0f64;
            for (column, &count) in counts.iter().enumerate() {
                let mut value = quantity.interpolate(&samples, |i| row[i].2, count);
                if count > samples[samples.len() - 1] && at + 1 < rows.len() {
                    value = value.min(values[(at + 1) * width + column]);
                }
                highest = highest.max(value);
                values[at * width + column] = highest;
            }
        }
        for at in width..values.len() {
            values[at] = values[at].max(values[at - width]);
        }
        Grid { lengths, counts, values, quantity }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The value for `samples` samples of `tokens` tokens: that of [`Grid::curve`], without
    /// building one.
    pub(super) fn at(&self, samples: u32, tokens: u32) -> f64 {
        let position = self.position(tokens);
        let mut highest = 0.0f64;
        let mut rising = |column: usize| {
            highest = highest.max(self.column_at(column, position));
            highest
        };
        if self.quantity == Quantity::Bytes {
            let columns: Vec<f64> = (0..self.counts.len()).map(rising).collect();
            return self.quantity.interpolate(&self.counts, |column| columns[column], samples);
        }
        // Two columns define the segment of the value: those around it, or the first or last two.
        let above = self.counts.partition_point(|&count| count < samples);
        let end = (above + 1).max(2).min(self.counts.len());
        let mut pair = [0.0; 2];
        for column in 0..end {
            pair = [pair[1], rising(column)];
        }
        let known = end.min(2);
        self.quantity.interpolate(&self.counts[end - known..end], |i| pair[2 - known + i], samples)
    }

    /// The values for samples of one length.
    pub(super) fn curve(&self, tokens: u32) -> Curve {
        let position = self.position(tokens);
        let mut highest = 0.0f64;
        let knot = |(column, &count): (usize, &u32)| {
            highest = highest.max(self.column_at(column, position));
            (f64::from(count), highest)
        };
        Curve::new(self.counts.iter().enumerate().map(knot))
    }

    /// The position of a length among the rows.
    fn position(&self, tokens: u32) -> RowPosition {
        let x = f64::from(tokens);
        let row = |row: usize| f64::from(self.lengths[row]);
        let last = self.lengths.len() - 1;
        let above = self.lengths.partition_point(|&length| length < tokens);
        if last == 0 || self.lengths.get(above) == Some(&tokens) {
            let above = above.min(last);
            return RowPosition::One { row: above, times: x / row(above) };
        }
        match above {
            0 => RowPosition::Before { part: x / row(0), start: row(0) / (row(1) - row(0)) },
            above if above > last => {
                let beyond = x - row(last);
                RowPosition::Beyond {
                    by_slope: beyond / (row(last) - row(last - 1)),
                    by_proportion: beyond / row(last),
                }
            }
            above => RowPosition::Between { above, part: (x - row(above - 1)) / (row(above) - row(above - 1)) },
        }
    }

    fn column_at(&self, column: usize, position: RowPosition) -> f64 {
        let width = self.counts.len();
        let value = |row: usize| self.values[row * width + column];
        let last = self.lengths.len() - 1;
        let is_bytes = self.quantity == Quantity::Bytes;
        match position {
            RowPosition::One { row, times } if is_bytes => value(row) * times.max(1.0),
            RowPosition::One { row, times } => value(row) * times,
            RowPosition::Before { .. } if is_bytes => value(0),
            RowPosition::Before { part, start } => {
                let start = (value(0) - (value(1) - value(0)) * start).max(0.0);
                start + (value(0) - start) * part
            }
            RowPosition::Between { above, part } => value(above - 1) + (value(above) - value(above - 1)) * part,
            RowPosition::Beyond { by_slope, by_proportion } if is_bytes => {
                // Attention grows with the square: linear extrapolation of a parabola is too low.
                let growth = (value(last) - value(last - 1)) * by_slope * (1.0 + by_proportion);
                value(last) + if growth > 0.0 { growth } else { value(last) * by_proportion }
            }
            RowPosition::Beyond { by_slope, by_proportion } => {
                value(last) + ((value(last) - value(last - 1)) * by_slope).max(value(last) * by_proportion)
            }
        }
    }
}

/// The position of a length among the rows, and the weights of the rows' values.
#[derive(Clone, Copy, Debug)]
enum RowPosition {
    One { row: usize, times: f64 },
    Before { part: f64, start: f64 },
    Between { above: usize, part: f64 },
    Beyond { by_slope: f64, by_proportion: f64 },
}

impl Quantity {
    fn interpolate(self, xs: &[u32], y: impl Fn(usize) -> f64, x: u32) -> f64 {
        let last = xs.len() - 1;
        match self {
            Quantity::Seconds => interpolate(xs, y, f64::from(x)),
            Quantity::Bytes if x <= xs[0] => y(0),
            Quantity::Bytes if x > xs[last] && last > 0 => {
                let slope = |i: usize| (y(i + 1) - y(i)) / f64::from(xs[i + 1] - xs[i]);
                let steepest = (0..last).map(slope).fold(0.0, f64::max);
                // Memory that did not grow was allocated in large pieces, so it gives no slope.
                let steepest = if steepest > 0.0 { steepest * 1.125 } else { y(last) / f64::from(xs[last]) };
                y(last) + steepest * f64::from(x - xs[last])
            }
            Quantity::Bytes => interpolate(xs, y, f64::from(x)),
        }
    }
}
