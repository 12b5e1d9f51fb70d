//! Sums computed by one thread, to compare with those of a group bit for bit.

use half::bf16;
use hetseq_comm::{Algorithm, Shards, WireFormat};

/// Values whose sum depends on the order of addition.
pub(crate) fn values(rank: usize, len: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_u32.wrapping_mul(rank as u32 + 1);
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let magnitude = 10f32.powi((state >> 28) as i32 - 8);
        ((state >> 8) as f32 / 8_388_608.0 - 1.0) * magnitude
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Returns the sum of one vector per rank, added and rounded in the order that the algorithm
/// promises. The owner of a value adds the others' contributions in rank order as they arrive,
/// rounded by the wire format, and its own as it is, then rounds the sum; in a ring the sum starts
/// at the owner and continues around.
pub(crate) fn sum(ranks: &[Vec<f32>], shards: &Shards, wire_format: WireFormat, algorithm: Algorithm) -> Vec<f32> {
    let (world, mut sum) = (ranks.len(), Vec::with_capacity(shards.len()));
    let exact_from = match wire_format {
        WireFormat::Bf16 { exact_tail } if world > 1 => shards.len().saturating_sub(exact_tail),
        _ => 0,
    };
    let is_ring = algorithm.choose(wire_format, shards) == Algorithm::Ring;
    for owner in 0..world {
        for at in shards.of(owner) {
            let round = |value: f32| if at < exact_from { bf16::from_f32(value).to_f32() } else { value };
            let sent = |rank: usize| if rank == owner { ranks[rank][at] } else { round(ranks[rank][at]) };
            sum.push(if is_ring {
                (1..world).fold(ranks[owner][at], |sum, step| ranks[(owner + step) % world][at] + sum)
            } else {
                round((1..world).fold(sent(0), |sum, rank| sum + sent(rank)))
            });
        }
    }
    sum
}
