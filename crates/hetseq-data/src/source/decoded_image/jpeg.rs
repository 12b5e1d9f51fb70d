//! Detects truncated JPEG files. Decoders silently fill missing data with grey, which must not be
//! trained on. Called by [`decoded_image`](super).

const SOI: u8 = 0xd8;
const EOI: u8 = 0xd9;
const TEM: u8 = 0x01;

/// Walks from marker to marker to the end-of-image marker. The markers of a thumbnail are inside a
/// segment, which is skipped completely.
pub(super) fn is_complete(bytes: &[u8]) -> bool {
    let mut at = 0;
    loop {
        let Some((marker, after)) = next_marker(bytes, at) else { return false };
        at = match marker {
            EOI => return true,
            SOI => after,
            _ => match bytes.get(after..after + 2) {
                // The length counts its own two bytes.
                Some(length) => after + usize::from(u16::from_be_bytes([length[0], length[1]])).max(2),
                None => return false,
            },
        };
    }
}

/// Returns the next marker at or after `at` that is not part of compressed data, and the position
/// after it.
fn next_marker(bytes: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        at += bytes.get(at..)?.iter().position(|&byte| byte == 0xff)? + 1;
        match *bytes.get(at)? {
            // A stuffed zero, a fill byte or a restart marker: they occur between and inside
            // compressed data.
            0x00 | 0xff | 0xd0..=0xd7 | TEM => {}
            marker => return Some((marker, at + 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Start, a segment with a thumbnail's end marker inside, a scan with stuffing and a restart,
    /// end.
    const COMPLETE: [u8; 22] =
        [0xff, 0xd8, 0xff, 0xe1, 0, 4, 0xff, 0xd9, 0xff, 0xff, 0xda, 0, 3, 7, 1, 0xff, 0x00, 2, 0xff, 0xd0, 0xff, 0xd9];

    #[test]
    fn a_complete_file_has_an_end_marker() {
        assert!(is_complete(&COMPLETE));
        for cut in 0..COMPLETE.len() {
            assert!(!is_complete(&COMPLETE[..cut]), "cut at {cut}");
        }
        let mut followed = COMPLETE.to_vec();
        followed.extend([0, 1, 2]);
        assert!(is_complete(&followed));
    }

    #[test]
    fn wrong_segment_lengths_are_handled() {
        assert!(!is_complete(&[0xff, 0xd8, 0xff, 0xe1, 0xff, 0xff, 0xff, 0xd9]));
        assert!(is_complete(&[0xff, 0xd8, 0xff, 0xe1, 0, 0, 0xff, 0xd9]));
    }
}
