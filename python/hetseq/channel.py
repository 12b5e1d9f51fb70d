"""The socket to HetSeq: messages of JSON with descriptors (docs/engine-protocol.md, "The channel").

`engine.py` opens the channel and reads requests; the roles (`data.py`, `device.py`) answer them.
"""
import fcntl
import json
import mmap
import os
import socket
import struct
import tempfile

MAX_BYTES = 64 << 20
MAX_DESCRIPTORS = 8
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Channel:
    """A stream socket that carries one JSON object per message."""

    def __init__(self, stream):
        self.stream = stream

    @classmethod
    def from_stdin(cls):
        """Takes the socket from standard input, which reads nothing from then on.

        Standard output becomes standard error: a print in the user's code must not end up in a
        protocol, and programs that the user's code starts must not hold the socket open.
        """
        try:
            stream = socket.socket(fileno=os.dup(0))
        except OSError:
            raise SystemExit("hetseq.engine is started by HetSeq: its standard input must be a socket. "
                             "To list devices: python -m hetseq.engine --devices") from None
        os.set_inheritable(stream.fileno(), False)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        return cls(stream)

    def receive(self):
        """The next message and its descriptors, which the caller closes; `(None, [])` at the end."""
        head, descriptors, _, _ = socket.recv_fds(self.stream, 4, MAX_DESCRIPTORS, _CLOSE_ON_EXEC)
        if not head:
            return None, []
        head += self._read(4 - len(head))
        length, = struct.unpack("<I", head)
        if length > MAX_BYTES:
            raise ConnectionError(f"HetSeq sent a message of {length} bytes, more than {MAX_BYTES}")
        return json.loads(self._read(length)), list(descriptors)

    def send(self, message, descriptors=()):
        """Sends a message. The descriptors remain the caller's."""
        body = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
        if len(body) > MAX_BYTES:
            raise ValueError(f"an answer has {len(body)} bytes without its arrays, more than {MAX_BYTES}")
        data = memoryview(struct.pack("<I", len(body)) + body)
        sent = socket.send_fds(self.stream, [data], descriptors) if descriptors else self.stream.send(data)
        self.stream.sendall(data[sent:])

    def _read(self, length):
        data = bytearray(length)
        view = memoryview(data)
        while view:
            count = self.stream.recv_into(view)
            if not count:
                raise EOFError("HetSeq closed the channel in the middle of a message")
            view = view[count:]
        return data


def float_bits(value):
    """The unsigned integer with the same 64 bits, for floats that may not be finite."""
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def bits_float(bits):
    """The inverse of `float_bits`."""
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def map_file(descriptor, private=False):
    """Maps a file in memory and closes its descriptor.

    Writes to a private mapping are not visible to other processes. The mapping lives as long as any
    array that views it.
    """
    try:
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE
        return mmap.mmap(descriptor, 0, access=access)
    finally:
        os.close(descriptor)


def memory_file(parts):
    """A new file in memory with the bytes of `parts`, one after the other. Returns its descriptor."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("hetseq-arrays", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        for part in parts:
            view = memoryview(part).cast("B")
            while view:
                view = view[os.write(descriptor, view):]
        if hasattr(fcntl, "F_ADD_SEALS"):
            # The other side maps the file: a size that changed later would be a crash there.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
