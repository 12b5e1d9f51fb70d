//! The image task against PyTorch, and its handling of unreadable files.

mod convnet;
mod resnet;
mod skip;

use super::ImageConfig;

/// The same generator as `scripts/fixtures/stream.py`.
struct Stream(u32);

impl Stream {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 16
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.word() >> 8) as u8).collect()
    }

    fn take(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|i| (self.word() as f32 / 32768.0 - 1.0) / f32::powi(2.0, (i % 8) as i32)).collect()
    }
}

/// A config with `more` lines in the table.
fn config(more: &str) -> ImageConfig {
    toml::from_str(&format!("data = \"\"\n{more}")).unwrap()
}
