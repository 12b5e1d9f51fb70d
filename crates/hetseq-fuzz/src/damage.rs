//! Inputs: a small random generator, and damage to valid bytes. Random bytes alone rarely pass the
//! first check of a parser.

/// A small deterministic generator. Not for anything else than tests.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 11) as usize % bound
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Damages bytes in ways that break parsers: flipped bits, extreme numbers, cuts, repetitions,
/// insertions.
pub fn damage(bytes: &mut Vec<u8>, rng: &mut Rng) {
    // Little-endian, and as the variable-length integers of postcard.
    const EXTREMES: [[u8; 10]; 10] = [
        number(0),
        number(1),
        number(0x7f),
        number(0xff),
        number(0xffff),
        number(0x7fff_ffff),
        number(0xffff_ffff),
        number(u64::MAX),
        [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0, 0],
        [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    ];
    for _ in 0..1 + rng.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.below(bytes.len());
        let until = at + rng.below((bytes.len() - at).min(40) + 1);
        match rng.below(7) {
            0 | 1 => bytes[at] ^= 1 << rng.below(8),
            2 => {
                let number = EXTREMES[rng.below(EXTREMES.len())];
                bytes[at..until].iter_mut().zip(number).for_each(|(byte, new)| *byte = new);
            }
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..until)),
            5 => {
                let again = bytes[at..until].to_vec();
                bytes.splice(at..at, again);
            }
            _ => {
                let count = rng.below(24);
                let new = rng.bytes(count);
                bytes.splice(at..at, new);
            }
        }
    }
}

const fn number(value: u64) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes.split_at_mut(8).0.copy_from_slice(&value.to_le_bytes());
    bytes
}
