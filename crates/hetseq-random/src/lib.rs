//! Keyed random numbers: every number is a pure function of its key.
//!
//! There is no state. A [`Key`] is a path (seed, stream, epoch or update, sample, site) hashed into
//! 64 bits, and element `i` of a key is a hash of both. So a number does not depend on which worker
//! asks for it, in which order, or how often. A recomputed block draws the same mask, a resumed run
//! shuffles in the same way, and a sample that moves to another machine keeps its noise.
//!
//! The hash per element uses only 32-bit multiply, xor and shift, which every GPU has, so that
//! devices can compute the same bits; see `hetseq-kernels`.

/// A node in the tree of random streams. [`Key::name`] and [`Key::index`] return child keys; the
/// other methods return random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(u64);

impl Key {
    /// The root key of a seed.
    pub fn root(seed: u64) -> Self {
        Key(mix64(seed ^ 0x6865_7473_6571_2e31))
    }

    /// The child key called `name`: a parameter, a site in the network, a kind of augmentation.
    pub fn name(self, name: &str) -> Self {
        name.bytes().fold(self.index(name.len() as u64), |key, byte| key.index(u64::from(byte)))
    }

    /// The `index`-th child key: an epoch, an update, a sample.
    pub fn index(self, index: u64) -> Self {
        // Mixing the index first keeps the children of neighbouring parents distinct.
        Key(mix64(self.0.rotate_left(23) ^ mix64(index.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    /// The two key words of the element hash, for code that computes it on a device.
    pub fn words(self) -> (u32, u32) {
        (self.0 as u32, (self.0 >> 32) as u32)
    }

    /// The key as a number, for another program that derives the same children.
    pub fn number(self) -> u64 {
        self.0
    }

    /// 32 random bits for element `i`.
    #[inline]
    pub fn bits(self, i: u32) -> u32 {
        let (low, high) = self.words();
        element_bits(low, high, i)
    }

    /// 64 random bits for element `i`.
    #[inline]
    pub fn bits64(self, i: u64) -> u64 {
        mix64(self.0 ^ mix64(i.wrapping_mul(0xd6e8_feb8_6659_fd93)))
    }

    /// Uniform in [0, 1), with all 24 bits that an f32 can hold.
    #[inline]
    pub fn unit(self, i: u32) -> f32 {
        (self.bits(i) >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    /// Uniform in [low, high).
    #[inline]
    pub fn between(self, i: u32, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit(i)
    }

    /// Uniform in 0..n; `n` must not be zero. The bias of the fixed-point product is below n /
    /// 2^64.
    #[inline]
    pub fn below(self, i: u64, n: u64) -> u64 {
        ((u128::from(self.bits64(i)) * u128::from(n)) >> 64) as u64
    }

    /// Standard normal (Box-Muller). Uses `libm` instead of the system library, so that every
    /// platform draws the same bits.
    pub fn normal(self, i: u64) -> f32 {
        let u = ((self.bits64(2 * i) >> 11) as f64 + 0.5) * (1.0 / 9_007_199_254_740_992.0);
        let angle = (self.bits64(2 * i + 1) >> 11) as f64 * (std::f64::consts::TAU / 9_007_199_254_740_992.0);
        (libm::sqrt(-2.0 * libm::log(u)) * libm::cos(angle)) as f32
    }

    /// Fisher-Yates shuffle; the order depends on the key and the length only.
    pub fn shuffle<T>(self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64, last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}

/// The element hash: two keyed rounds of a 32-bit finalizer. `hetseq-kernels` computes the same on
/// tensors.
#[inline(always)]
pub fn element_bits(low: u32, high: u32, i: u32) -> u32 {
    mix32(mix32(i ^ low) ^ high)
}

/// A 32-bit bijection with low bias, with the constants of the `lowbias32` hash.
#[inline(always)]
fn mix32(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(MIX_FIRST);
    x ^= x >> 15;
    x = x.wrapping_mul(MIX_SECOND);
    x ^ (x >> 16)
}

/// The multipliers of the element hash.
pub const MIX_FIRST: u32 = 0x7feb_352d;
pub const MIX_SECOND: u32 = 0x846c_a68b;

/// The SplitMix64 finalizer.
#[inline]
fn mix64(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_gives_the_recorded_bits() {
        // Recorded once. A change here changes all existing runs: bump the checkpoint format
        // instead.
        let key = Key::root(17).name("dropout").index(3);
        assert_eq!([key.bits(0), key.bits(1), key.bits(2)], RECORDED_BITS);
        assert_eq!(key.normal(5).to_bits(), RECORDED_NORMAL);
    }
    const RECORDED_BITS: [u32; 3] = [3_017_216_939, 2_728_134_285, 3_269_587_725];
    const RECORDED_NORMAL: u32 = 1_055_219_374;

    #[test]
    fn uniform_numbers_are_uniform() {
        // Chi-squared over 256 cells: mean 255, standard deviation 22.6. Several keys and both
        // generators.
        for seed in 0..8 {
            let key = Key::root(seed).index(1);
            let n = 1 << 18;
            let mut narrow = [0u32; 256];
            let mut wide = [0u32; 256];
            for i in 0..n {
                narrow[(key.bits(i) >> 24) as usize] += 1;
                wide[key.below(u64::from(i), 256) as usize] += 1;
            }
            for cells in [narrow, wide] {
                let expected = f64::from(n) / 256.0;
                let chi: f64 = cells.iter().map(|&c| (f64::from(c) - expected).powi(2) / expected).sum();
                assert!((130.0..400.0).contains(&chi), "seed {seed}: chi-squared {chi}");
            }
        }
    }

    #[test]
    fn neighbouring_keys_are_uncorrelated() {
        let (mut agree, n) = (0u32, 1u32 << 16);
        for i in 0..n {
            let key = Key::root(1).index(u64::from(i));
            let next = Key::root(1).index(u64::from(i) + 1);
            agree += (!(key.bits(0) ^ next.bits(0))).count_ones();
        }
        let rate = f64::from(agree) / f64::from(n) / 32.0;
        assert!((rate - 0.5).abs() < 0.002, "bits agree at rate {rate}");
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let key = Key::root(5).name("init");
        let n = 200_000u64;
        let (mut sum, mut square) = (0.0, 0.0);
        for i in 0..n {
            let x = f64::from(key.normal(i));
            sum += x;
            square += x * x;
        }
        let mean = sum / n as f64;
        assert!(mean.abs() < 0.01, "mean {mean}");
        assert!((square / n as f64 - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_shuffle_is_a_permutation_that_moves_most_items() {
        let mut items: Vec<u32> = (0..1000).collect();
        Key::root(2).shuffle(&mut items);
        assert!(items.iter().enumerate().filter(|(i, x)| *i as u32 == **x).count() < 20);
        items.sort_unstable();
        assert!(items.iter().enumerate().all(|(i, x)| i as u32 == *x));
    }

    #[test]
    fn concatenated_names_give_different_keys() {
        let root = Key::root(0);
        assert_ne!(root.name("ab").name("c"), root.name("a").name("bc"));
        assert_ne!(root.name("a"), root.index(97));
    }
}
