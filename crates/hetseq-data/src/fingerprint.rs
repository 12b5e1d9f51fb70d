//! The fingerprint of a small file or text: equal contents have equal ones. Larger data has stored
//! checksums (`source/checksum.rs`).

/// Sixteen hexadecimal digits that identify `content`.
pub fn fingerprint(content: &[u8]) -> String {
    blake3::hash(content).to_hex()[..16].to_owned()
}
