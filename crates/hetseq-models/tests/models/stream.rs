//! Reproducible inputs: the same generator as `scripts/fixtures/stream.py`.

pub(crate) struct Stream(pub(crate) u32);

impl Stream {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 16
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.word() >> 8) as u8).collect()
    }

    pub(crate) fn parameter(&mut self, name: &str, shape: &[usize]) -> Vec<f32> {
        let count: usize = shape.iter().product();
        let fan_in = count / shape[0];
        let halvings = (0..).find(|&n| 4usize.pow(n) >= fan_in).unwrap();
        let mut value = |i: usize| (self.word() as f32 / 32768.0 - 1.0) / f32::powi(2.0, (i % 8) as i32);
        let mut values: Vec<f32> = (0..count).map(&mut value).collect();
        for value in &mut values {
            *value = match shape.len() {
                1 if name.ends_with("weight") => 1.0 + *value / 4.0,
                1 => *value / 4.0,
                _ => *value / f32::powi(2.0, halvings.saturating_sub(2) as i32),
            };
        }
        values
    }
}
