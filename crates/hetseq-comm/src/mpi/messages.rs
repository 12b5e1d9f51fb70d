//! Frames as MPI messages, and back. Pure: which messages a frame becomes, in which order, under
//! which tags; it neither sends nor receives.
//!
//! MPI keeps the messages of one sender in order, knows their lengths and delivers them undamaged,
//! so a large frame is sent as it is in memory: its tag says whether it is the last of its message,
//! and an opening before the first frame of a collective says which collective it is.
//!
//! | tag | message |
//! |---|---|
//! | `WHOLE` | a small frame: its header (`frame/`), then its payload |
//! | `OPENING` | the header of an empty frame: `PIECE` and `LAST` from now on are of its collective |
//! | `PIECE`, `LAST` | the payload of a frame |
//! | `CONTROL` | a whole frame that overtakes all others: a heartbeat, or the reason of a rank that fails |

use std::ffi::c_int;
use std::sync::Arc;

use crate::buffers::Payload;
use crate::frame::{Accept, FRAME_LIMIT_BYTES, Frame, FrameError, FrameKind, ReadError, read_frame};

pub(super) const WHOLE: c_int = 1;
pub(super) const OPENING: c_int = 2;
pub(super) const PIECE: c_int = 3;
pub(super) const LAST: c_int = 4;
pub(super) const CONTROL: c_int = 5;

/// All frames carry it: the communicator belongs to one job, and its ranks never regroup.
const GENERATION: u64 = 0;

/// Payloads up to this size are copied behind their header: cheaper than a second message.
const COPIED_BYTES: usize = 2 << 10;

/// One message for MPI.
pub(super) type TaggedPayload = (c_int, Arc<Payload>);

/// The frames that go to one peer.
#[derive(Default)]
pub(super) struct FrameWriter {
    /// The collective of the last opening.
    opened: Option<(FrameKind, u64)>,
}

impl FrameWriter {
    /// Returns the messages of the next frame, in order.
    pub(super) fn messages(&mut self, frame: &Frame) -> impl Iterator<Item = TaggedPayload> + use<> {
        let (opening, message);
        if frame.payload.len() <= COPIED_BYTES {
            (opening, message) = (None, (WHOLE, whole(frame)));
        } else {
            let collective = (frame.kind, frame.sequence);
            let is_open = self.opened.replace(collective) == Some(collective);
            let empty = Frame { last: true, payload: Payload::new(Vec::new()), ..frame.clone() };
            opening = (!is_open).then(|| (OPENING, whole(&empty)));
            message = (if frame.last { LAST } else { PIECE }, frame.payload.clone());
        }
        opening.into_iter().chain([message])
    }
}

/// Returns header and payload in one message.
pub(super) fn whole(frame: &Frame) -> Arc<Payload> {
    Payload::new([&frame.header(GENERATION)[..], &frame.payload].concat())
}

/// The frames that come from one peer.
#[derive(Default)]
pub(super) struct FrameReader {
    opened: Option<(FrameKind, u64)>,
}

impl FrameReader {
    /// Returns the frame that a message completes; `None` for an opening.
    pub(super) fn take(&mut self, tag: c_int, payload: Arc<Payload>) -> Result<Option<Frame>, FrameError> {
        match tag {
            WHOLE | CONTROL => parse(&payload).map(Some),
            OPENING => {
                let frame = parse(&payload)?;
                self.opened = Some((frame.kind, frame.sequence));
                Ok(None)
            }
            PIECE | LAST => {
                let out_of_place = FrameError::OutOfPlace { kind: "piece" };
                let (kind, sequence) = self.opened.ok_or(out_of_place)?;
                if payload.is_empty() && tag == PIECE {
                    return Err(FrameError::Empty);
                }
                Ok(Some(Frame { kind, last: tag == LAST, sequence, payload }))
            }
            // The values of the tag are not a frame's, but say the same.
            _ => Err(FrameError::UnknownKind { kind: tag as u8, flags: 0 }),
        }
    }
}

fn parse(message: &[u8]) -> Result<Frame, FrameError> {
    let mut rest = message;
    let frame = match read_frame(&mut rest, Accept::only(GENERATION, FRAME_LIMIT_BYTES)) {
        Ok(frame) => frame,
        Err(ReadError::Frame(fault)) => return Err(fault),
        Err(_) => return Err(wrong_length(message)),
    };
    if rest.is_empty() { Ok(frame) } else { Err(wrong_length(message)) }
}

fn wrong_length(message: &[u8]) -> FrameError {
    FrameError::WrongLength { bytes: message.len() as u64 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::HEADER_BYTES;

    fn frame(kind: FrameKind, sequence: u64, bytes: usize, last: bool) -> Frame {
        let payload = Payload::new((0..bytes).map(|at| at as u8).collect());
        Frame { kind, last: last || bytes == 0, sequence, payload }
    }

    fn any_frame() -> impl Strategy<Value = Frame> {
        let kinds = prop::sample::select(vec![FrameKind::AllReduce, FrameKind::Barrier, FrameKind::Goodbye]);
        (kinds, 0..3u64, 0..2 * COPIED_BYTES, any::<bool>())
            .prop_map(|(kind, sequence, bytes, last)| frame(kind, sequence, bytes, last))
    }

    fn read(messages: impl IntoIterator<Item = TaggedPayload>) -> Result<Vec<Frame>, FrameError> {
        let mut reader = FrameReader::default();
        let frames = messages.into_iter().map(|(tag, payload)| reader.take(tag, payload));
        frames.filter_map(Result::transpose).collect()
    }

    #[test]
    fn a_collective_is_opened_once() {
        let mut writer = FrameWriter::default();
        let mut tags = |frame| writer.messages(&frame).map(|(tag, _)| tag).collect::<Vec<_>>();
        let large = COPIED_BYTES + 1;
        assert_eq!(tags(frame(FrameKind::AllReduce, 1, large, false)), [OPENING, PIECE]);
        assert_eq!(tags(frame(FrameKind::AllReduce, 1, COPIED_BYTES, false)), [WHOLE]);
        assert_eq!(tags(frame(FrameKind::AllReduce, 1, large, true)), [LAST]);
        assert_eq!(tags(frame(FrameKind::AllReduce, 2, large, true)), [OPENING, LAST]);
        assert_eq!(tags(frame(FrameKind::Broadcast, 2, large, true)), [OPENING, LAST]);
    }

    #[test]
    fn a_large_frame_is_not_copied() {
        let sent = frame(FrameKind::AllReduce, 1, COPIED_BYTES + 1, true);
        let (_, payload) = FrameWriter::default().messages(&sent).last().unwrap();
        assert!(Arc::ptr_eq(&payload, &sent.payload));
    }

    #[test]
    fn messages_out_of_place_are_errors() {
        let bytes = |count| Payload::new(vec![0; count]);
        assert_eq!(read([(PIECE, bytes(9))]), Err(FrameError::OutOfPlace { kind: "piece" }));
        assert!(matches!(read([(99, bytes(9))]), Err(FrameError::UnknownKind { .. })));
        let barrier = frame(FrameKind::Barrier, 1, 0, true);
        assert_eq!(read([(OPENING, whole(&barrier)), (PIECE, bytes(0))]), Err(FrameError::Empty));
        let other = Payload::new(barrier.header(GENERATION + 1).to_vec());
        assert!(matches!(read([(WHOLE, other)]), Err(FrameError::Generation { .. })));
        let mut long = whole(&barrier).to_vec();
        long.push(0);
        for damaged in [long, Vec::new(), vec![1; HEADER_BYTES - 1]] {
            assert!(read([(WHOLE, Payload::new(damaged))]).is_err());
        }
    }

    proptest! {
        #[test]
        fn frames_arrive_as_they_were_sent(frames in prop::collection::vec(any_frame(), 0..20)) {
            let mut writer = FrameWriter::default();
            let messages: Vec<_> = frames.iter().flat_map(|frame| writer.messages(frame)).collect();
            prop_assert_eq!(read(messages).unwrap(), frames);
        }

        #[test]
        fn any_message_is_a_frame_or_an_error(tag in 0..7, bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = read([(tag, Payload::new(bytes))]);
        }
    }
}
