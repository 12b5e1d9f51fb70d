//! The crc32c of a payload. Every byte that ranks exchange passes through it twice, so it decides
//! much of the time of a sum.
//!
//! Crate `crc32c` uses the CRC instruction of the CPU, which takes 8 bytes per cycle. The carry-less
//! multiplication of 512-bit registers is two to three times as fast where it exists. Used by
//! `buffers.rs`.

/// Returns the crc32c of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq") {
            #[expect(unsafe_code, reason = "a function with CPU features is unsafe to call")]
            // SAFETY: the CPU has these features.
            return unsafe { wide::crc32c(bytes) };
        }
    }
    crc32c::crc32c(bytes)
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{__m512i, _mm512_clmulepi64_epi128, _mm512_set_epi64, _mm512_xor_si512};

    /// Four registers, to overlap the latency of the multiplication.
    const BLOCK: usize = 256;
    /// The polynomial of crc32c, bits reversed, without its highest term.
    const POLYNOMIAL: u32 = 0x82f6_3b78;

    /// Returns `x^exponent` modulo the polynomial, as the carry-less multiplication of reversed
    /// numbers needs it: shifted by one.
    const fn power(exponent: usize) -> i64 {
        // The highest bit of a reversed number is x^0.
        let (mut power, mut at) = (0x8000_0000u32, 0);
        while at < exponent {
            power = (power >> 1) ^ if power & 1 == 1 { POLYNOMIAL } else { 0 };
            at += 1;
        }
        (power as i64) << 1
    }

    /// Replaces the bytes before each block by a remainder that is as long as the block, up to the
    /// last one: then a few bytes are left, with the same checksum as all.
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(super) fn crc32c(bytes: &[u8]) -> u32 {
        let (blocks, rest) = bytes.as_chunks::<BLOCK>();
        let Some((first, blocks)) = blocks.split_first() else { return crc32c::crc32c(bytes) };
        // Moves 128 bits over the distance of a block.
        let (low, high) = (const { power(8 * BLOCK + 32) }, const { power(8 * BLOCK - 32) });
        let shift = _mm512_set_epi64(high, low, high, low, high, low, high, low);
        let mut remainder = load(first);
        // A crc32c starts with all bits set.
        let start = _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, 0xffff_ffff);
        remainder[0] = _mm512_xor_si512(remainder[0], start);
        for block in blocks {
            for (remainder, block) in remainder.iter_mut().zip(load(block)) {
                let low = _mm512_clmulepi64_epi128::<0x00>(*remainder, shift);
                let high = _mm512_clmulepi64_epi128::<0x11>(*remainder, shift);
                *remainder = _mm512_xor_si512(_mm512_xor_si512(low, high), block);
            }
        }
        #[expect(unsafe_code, reason = "the safe way is a store of each of 32 numbers")]
        // SAFETY: both are plain bytes of the same size.
        let remainder: [u8; BLOCK] = unsafe { std::mem::transmute(remainder) };
        // The remainder contains the start, so this starts from zero.
        crc32c::crc32c_append(crc32c::crc32c_append(!0, &remainder), rest)
    }

    #[target_feature(enable = "avx512f")]
    fn load(block: &[u8; BLOCK]) -> [__m512i; 4] {
        #[expect(unsafe_code, reason = "the safe way is a load of each of 32 numbers")]
        // SAFETY: both are plain bytes of the same size.
        unsafe {
            std::mem::transmute(*block)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_crc32c_of_any_length() {
        let bytes: Vec<u8> = (0..3_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for length in (0..1_100).chain([2_047, 2_048, 2_999]) {
            for start in [0, 1, 7] {
                let bytes = &bytes[start.min(length)..length];
                assert_eq!(crc32c(bytes), crc32c::crc32c(bytes), "{length} bytes");
            }
        }
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
