//! Decompresses Zstandard files: frames one after another, each with its checksum. Called by
//! `files`.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The first bytes of a Zstandard file.
pub(super) const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A file that is damaged or ends too early.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct ZstdDamage(String);

/// The text of all frames of a file.
pub(super) struct ZstdReader<R> {
    source: R,
    decoder: FrameDecoder,
    is_in_frame: bool,
}

impl<R: BufRead> ZstdReader<R> {
    pub(super) fn new(source: R) -> Self {
        ZstdReader { source, decoder: FrameDecoder::new(), is_in_frame: false }
    }

    /// Begins the next frame with text. False at the end of the file.
    fn begin_frame(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.init(&mut self.source) {
                Ok(()) => {
                    self.is_in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    if io::copy(&mut (&mut self.source).take(length), &mut io::sink())? < length {
                        return Err(damaged("it ends too early"));
                    }
                }
                Err(error) => return Err(damaged(error)),
            }
        }
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.is_in_frame = false;
        match (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum()) {
            (Some(stored), Some(found)) if stored != found => Err(damaged("its checksum is wrong")),
            _ => Ok(()),
        }
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_in_frame && !self.begin_frame()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let blocks = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, blocks).map_err(damaged)?;
            }
            match self.decoder.read(buffer)? {
                0 => self.end_frame()?,
                read => return Ok(read),
            }
        }
    }
}

fn damaged(reason: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, ZstdDamage(reason.to_string()))
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn read(bytes: &[u8]) -> io::Result<String> {
        let mut text = String::new();
        ZstdReader::new(bytes).read_to_string(&mut text).map(|_| text)
    }

    #[test]
    fn all_frames_are_read() {
        let [one, two] = ["one\n".repeat(50_000), "two\n".to_owned()]
            .map(|text| compress_to_vec(text.as_bytes(), CompressionLevel::Fastest));
        // A frame that decoders skip, with three bytes.
        let skipped = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, b'x', b'y', b'z'];
        let both = [&one[..], &skipped, &two].concat();
        assert_eq!(read(&both).unwrap(), "one\n".repeat(50_000) + "two\n");
        assert_eq!(read(&[]).unwrap(), "");
    }

    #[test]
    fn damage_is_an_error() {
        let text: String = (0..20_000).map(|n| format!("{n} words\n")).collect();
        let whole = compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
        for length in [5, whole.len() / 2, whole.len() - 1] {
            let error = read(&whole[..length]).unwrap_err();
            assert!(error.get_ref().is_some_and(|inner| inner.is::<ZstdDamage>()), "{length}: {error}");
        }
        let mut changed = whole.clone();
        let middle = whole.len() / 2;
        changed[middle] ^= 0x55;
        assert!(read(&changed).is_err());
    }
}
