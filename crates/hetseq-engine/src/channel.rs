//! Messages and file descriptors over a Unix stream socket: a length of 4 bytes, then JSON. The
//! descriptors travel with the first bytes of a message.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A longer message is an error of the peer. Arrays are not in messages.
const MAX_MESSAGE: usize = 64 << 20;
const MAX_DESCRIPTORS: usize = 2;

pub(crate) struct Channel {
    socket: UnixStream,
}

impl Channel {
    /// `timeout` limits how long the peer may neither send nor receive.
    pub(crate) fn new(socket: UnixStream, timeout: Duration) -> io::Result<Self> {
        socket.set_read_timeout(Some(timeout))?;
        socket.set_write_timeout(Some(timeout))?;
        Ok(Channel { socket })
    }

    pub(crate) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(timeout))?;
        self.socket.set_write_timeout(Some(timeout))
    }

    pub(crate) fn send(&mut self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes = vec![0; 4];
        serde_json::to_writer(&mut bytes, message)?;
        let length = bytes.len() - 4;
        if length > MAX_MESSAGE {
            return Err(io::Error::other(format!("a message of {length} bytes is too long")));
        }
        bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many file descriptors in one message"));
        }
        let sent =
            retry(|| rustix::net::sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL))?;
        // What did not fit into the socket's buffer.
        self.socket.write_all(&bytes[sent..])
    }

    /// Returns the next message; `None` if the peer has closed the channel.
    pub(crate) fn receive<M: DeserializeOwned>(&mut self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        let (mut length, mut have, mut descriptors) = ([0; 4], 0, Vec::new());
        while have < length.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = retry(|| {
                let mut part = [IoSliceMut::new(&mut length[have..])];
                rustix::net::recvmsg(&self.socket, &mut part, &mut control, RecvFlags::CMSG_CLOEXEC)
            })?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    descriptors.extend(received);
                }
            }
            match received.bytes {
                0 if have == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => have += bytes,
            }
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_MESSAGE {
            return Err(invalid(format!("a message of {length} bytes is announced, which cannot be")));
        }
        let mut bytes = vec![0; length];
        self.socket.read_exact(&mut bytes)?;
        let message = serde_json::from_slice(&bytes).map_err(|error| {
            let text: String = String::from_utf8_lossy(&bytes).chars().take(200).collect();
            invalid(format!("a message is not as expected: {error}, in {text}"))
        })?;
        Ok(Some((message, descriptors)))
    }
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Repeats a system call that a signal interrupted.
fn retry<R>(mut call: impl FnMut() -> Result<R, rustix::io::Errno>) -> io::Result<R> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use serde_json::{Value, json};

    use super::*;
    use crate::SharedFile;

    fn pair() -> (Channel, Channel, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        let raw = b.try_clone().unwrap();
        let timeout = Duration::from_millis(200);
        (Channel::new(a, timeout).unwrap(), Channel::new(b, timeout).unwrap(), raw)
    }

    #[test]
    fn messages_keep_their_order_and_their_files() {
        let (mut a, mut b, _) = pair();
        let shared = SharedFile::create(4).unwrap();
        shared.write(&[7u32]).unwrap();
        a.send(&json!({"n": 1}), &[]).unwrap();
        a.send(&json!({"n": 2}), &[shared.as_fd(), shared.as_fd()]).unwrap();
        a.send(&json!({"n": 3}), &[]).unwrap();
        let mut counts = Vec::new();
        for n in 1..=3 {
            let (message, descriptors) = b.receive::<Value>().unwrap().unwrap();
            assert_eq!(message, json!({ "n": n }));
            counts.push(descriptors.len());
            for descriptor in descriptors {
                let mut value = [0u32];
                SharedFile::received(descriptor).read(&mut value).unwrap();
                assert_eq!(value, [7]);
            }
        }
        assert_eq!(counts, [0, 2, 0]);
        drop(a);
        assert!(b.receive::<Value>().unwrap().is_none());
    }

    #[test]
    fn a_message_larger_than_the_socket_buffer_arrives() {
        let (mut a, mut b, _) = pair();
        let text = "x".repeat(5 << 20);
        let sent = json!(text);
        let sender = std::thread::spawn(move || a.send(&sent, &[]).map(|()| a));
        assert_eq!(b.receive::<String>().unwrap().unwrap().0.len(), text.len());
        sender.join().unwrap().unwrap();
    }

    #[test]
    fn silence_and_wrong_bytes_are_errors() {
        let (_a, mut b, _) = pair();
        assert_eq!(b.receive::<Value>().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        for (bytes, kind) in [
            (&b"\xff\xff\xff\xff"[..], io::ErrorKind::InvalidData),
            (b"\x02\0\0\0no", io::ErrorKind::InvalidData),
            (b"\x09\0\0\0{", io::ErrorKind::WouldBlock),
        ] {
            let (mut a, _b, mut raw) = pair();
            raw.write_all(bytes).unwrap();
            assert_eq!(a.receive::<Value>().unwrap_err().kind(), kind, "{bytes:?}");
        }
    }
}
