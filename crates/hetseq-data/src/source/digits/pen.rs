//! Draws antialiased straight lines with a round pen on a square canvas.
//!
//! The canvas stores, per pixel, the squared distance to the nearest line. The coverage is computed
//! at the end, so that crossing lines do not add up. Used by `digits` only.

/// A point of the unit square. x points right, y points down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PenPoint {
    pub(super) x: f32,
    pub(super) y: f32,
}

pub(super) struct Canvas {
    size: usize,
    squared_distances: Vec<f32>,
}

impl Canvas {
    pub(super) fn new(size: usize) -> Self {
        Canvas { size, squared_distances: vec![f32::INFINITY; size * size] }
    }

    pub(super) fn clear(&mut self) {
        self.squared_distances.fill(f32::INFINITY);
    }

    /// Draws from `from` to `to`; only pixels that a pen of `radius` can touch are visited.
    pub(super) fn line(&mut self, from: PenPoint, to: PenPoint, radius: f32) {
        let margin = radius + self.pixel();
        let (dx, dy) = (to.x - from.x, to.y - from.y);
        let length_squared = dx * dx + dy * dy;
        for row in self.touched(from.y, to.y, margin) {
            let y = (row as f32 + 0.5) * self.pixel() - from.y;
            for column in self.touched(from.x, to.x, margin) {
                let x = (column as f32 + 0.5) * self.pixel() - from.x;
                let along = if length_squared > 0.0 { (x * dx + y * dy) / length_squared } else { 0.0 };
                let along = along.clamp(0.0, 1.0);
                let (off_x, off_y) = (x - along * dx, y - along * dy);
                let nearest = &mut self.squared_distances[row * self.size + column];
                *nearest = nearest.min(off_x * off_x + off_y * off_y);
            }
        }
    }

    /// Coverage of each pixel by the pen, 0 to 1, in row-major order.
    pub(super) fn coverage(&self, radius: f32) -> impl Iterator<Item = f32> {
        let pixels_per_unit = self.size as f32;
        self.squared_distances.iter().map(move |squared| {
            let inside = (radius - squared.sqrt()) * pixels_per_unit;
            (inside + 0.5).clamp(0.0, 1.0)
        })
    }

    fn pixel(&self) -> f32 {
        1.0 / self.size as f32
    }

    /// Pixels of one axis between two coordinates, with a margin. The casts saturate, so the range
    /// is empty off the canvas.
    fn touched(&self, a: f32, b: f32, margin: f32) -> std::ops::Range<usize> {
        let low = (a.min(b) - margin) * self.size as f32;
        let high = (a.max(b) + margin) * self.size as f32;
        (low as usize).min(self.size)..(high.ceil() as usize).min(self.size)
    }
}
