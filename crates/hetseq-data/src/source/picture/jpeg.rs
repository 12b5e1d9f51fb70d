//! Whether a JPEG file is whole. Decoders fill in what is missing and say nothing; training on grey halves of pictures is
//! not what anybody wants.

const SOI: u8 = 0xd8;
const EOI: u8 = 0xd9;
const TEM: u8 = 0x01;

/// Walks from marker to marker to the end-of-image marker. Thumbnails have markers of their own, but lie inside a segment,
/// which is skipped as a whole.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
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

/// The next marker at or after `at` that is not part of compressed data, and where what follows it begins.
fn next_marker(bytes: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        at += bytes.get(at..)?.iter().position(|&byte| byte == 0xff)? + 1;
        match *bytes.get(at)? {
            // A stuffed zero, a fill byte, a restart marker: they stand between and inside compressed data.
            0x00 | 0xff | 0xd0..=0xd7 | TEM => {}
            marker => return Some((marker, at + 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Start, a segment with a thumbnail's end marker inside, a scan with stuffing and a restart, end.
    const WHOLE: [u8; 22] =
        [0xff, 0xd8, 0xff, 0xe1, 0, 4, 0xff, 0xd9, 0xff, 0xff, 0xda, 0, 3, 7, 1, 0xff, 0x00, 2, 0xff, 0xd0, 0xff, 0xd9];

    #[test]
    fn only_with_its_own_end_marker() {
        assert!(is_whole(&WHOLE));
        for cut in 0..WHOLE.len() {
            assert!(!is_whole(&WHOLE[..cut]), "cut at {cut}");
        }
        let mut followed = WHOLE.to_vec();
        followed.extend([0, 1, 2]);
        assert!(is_whole(&followed));
    }

    #[test]
    fn lengths_that_lie_lead_nowhere() {
        assert!(!is_whole(&[0xff, 0xd8, 0xff, 0xe1, 0xff, 0xff, 0xff, 0xd9]));
        assert!(is_whole(&[0xff, 0xd8, 0xff, 0xe1, 0, 0, 0xff, 0xd9]));
    }
}
