"""The Rust side of the engine protocol for tests: starts a real engine process and talks to it."""
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

PACKAGE = Path(__file__).resolve().parent.parent
REPOSITORY = PACKAGE.parent
sys.path.insert(0, str(PACKAGE))


class EngineFailed(Exception):
    """The engine answered with an error."""

    def __init__(self, kind, message):
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class Host:
    """An engine process and this side of its channel."""

    def __init__(self, role="device", command=None, environment=None, **hello):
        here, there = socket.socketpair()
        here.settimeout(120)
        self.socket = here
        command = command or [sys.executable, "-m", "hetseq.engine"]
        env = {**os.environ, "PYTHONPATH": str(PACKAGE), **(environment or {})}
        self.process = subprocess.Popen(command, stdin=there, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        there.close()
        self.hello = {"protocol": 1, "version": "0.1.0", "role": role, "device": "cpu", "threads": 1, "precision": "f32", "seed": 7, **hello}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def start(self, config, task="python", **fields):
        """`hello` and `open`; returns both answers."""
        return self.ask("hello", **self.hello), self.ask("open", task=task, config=config, **fields)

    def send(self, do, descriptors=(), **fields):
        body = json.dumps({"do": do, **fields}).encode()
        socket.send_fds(self.socket, [struct.pack("<I", len(body)) + body], descriptors)

    def receive(self):
        """The next message; its descriptors are in `self.descriptors`. None if the engine has ended."""
        head, self.descriptors, _, _ = socket.recv_fds(self.socket, 4, 4)
        if not head:
            return None
        while len(head) < 4:
            head += self.socket.recv(4 - len(head))
        body, length = b"", struct.unpack("<I", head)[0]
        while len(body) < length:
            body += self.socket.recv(length - len(body))
        return json.loads(body)

    def answer(self):
        """The content of `ok`; raises `EngineFailed` for an error."""
        message = self.receive()
        if message is None:
            raise EOFError(self.output())
        if "error" in message:
            raise EngineFailed(**message["error"])
        return message["ok"]

    def ask(self, do, descriptors=(), **fields):
        self.send(do, descriptors, **fields)
        return self.answer()

    def close(self):
        """Closes the channel. The engine must end by itself."""
        self.socket.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.stdout, self.stderr = self.process.stdout.read().decode(), self.process.stderr.read().decode()
        self.process.stdout.close()
        self.process.stderr.close()

    def output(self):
        self.close()
        return self.stderr


def memory_file(size, values=None):
    """A descriptor of a file in memory, and an array of f32 that views it."""
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 4 * size)
    array = np.frombuffer(mmap.mmap(descriptor, 4 * size), np.float32) if size else np.zeros(0, np.float32)
    if values is not None:
        array[:] = values
    return descriptor, array


def layout(parameters):
    """What HetSeq makes of the parameters of `open`: trainable ones first, without gaps."""
    ordered = sorted(parameters, key=lambda parameter: not parameter["trainable"])
    entries, offset = [], 0
    for parameter in ordered:
        entries.append({"name": parameter["name"], "shape": parameter["shape"], "offset": offset, "trainable": parameter["trainable"]})
        offset += int(np.prod(parameter["shape"], dtype=np.int64))
    trainable = sum(int(np.prod(entry["shape"], dtype=np.int64)) for entry in entries if entry["trainable"])
    return {"parameters": entries, "length": offset, "trainable_length": trainable}


def floats(bits):
    return [struct.unpack("<d", struct.pack("<Q", value))[0] for value in bits]


class Run:
    """A data process and a device process of one task, as in a run."""

    def __init__(self, config, **hello):
        self.data, self.device = Host("data", **{**hello, "precision": "f32"}), Host("device", **hello)
        _, self.task = self.data.start(config)
        self.lengths = self.data.descriptors
        self.greeting, _ = self.device.start(self.task["config"])
        self.layout = layout(self.task["parameters"])
        size = sum(int(np.prod(parameter["shape"], dtype=np.int64)) for parameter in self.task["parameters"])
        descriptor, initial = memory_file(size)
        self.data.ask("initial", [descriptor], seed=self.data.hello["seed"])
        self.parameters_fd, self.parameters = memory_file(self.layout["length"])
        self.gradients_fd, self.gradients = memory_file(self.layout["trainable_length"], np.nan)
        at, by_name = 0, {}
        for parameter in self.task["parameters"]:
            count = int(np.prod(parameter["shape"], dtype=np.int64))
            by_name[parameter["name"]] = initial[at:at + count]
            at += count
        for entry in self.layout["parameters"]:
            values = by_name[entry["name"]]
            self.parameters[entry["offset"]:entry["offset"] + len(values)] = values
        self.device.ask("layout", [self.parameters_fd, self.gradients_fd], **self.layout, terms=self.task["terms"])
        self.device.ask("load", count=self.layout["length"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.data.close()
        self.device.close()

    def collate(self, samples, split="train", epoch_key=1):
        """A micro request for the device, and its descriptors."""
        answer = self.data.ask("collate", split=split, samples=samples, epoch_key=epoch_key)
        return {"samples": samples, "counts": answer["counts"], "arrays": answer["arrays"], "tree": answer["tree"]}, list(self.data.descriptors)

    def compute(self, batches, scales=(1.0,), loss_scale=1.0, update_key=5, edit=None):
        """The losses of an update; the gradients are in `self.gradients`."""
        return self._do("compute", batches, update=0, scales=list(scales), loss_scale=loss_scale, update_key=update_key, edit=edit)

    def evaluate(self, batches):
        return self._do("evaluate", batches, split="valid")

    def _do(self, do, batches, split="train", edit=None, **fields):
        micro = [self.collate(samples, split) for samples in batches]
        self.device.send(do, micro=len(batches), **fields)
        for request, descriptors in micro:
            if edit:
                edit(request)
            self.device.send("micro", descriptors, **request)
            for descriptor in descriptors:
                os.close(descriptor)
        for number in range(1, len(batches) + 1):
            message = self.device.receive()
            if message is not None and "error" in message:
                raise EngineFailed(**message["error"])
            assert message == {"done": number}, message
        answer = self.device.answer()
        answer["losses"] = floats(answer["losses"])
        if "scores" in answer:
            answer["scores"] = floats(answer["scores"])
        return answer

    def gradient(self, name):
        entry = next(entry for entry in self.layout["parameters"] if entry["name"] == name)
        size = int(np.prod(entry["shape"], dtype=np.int64))
        return self.gradients[entry["offset"]:entry["offset"] + size].reshape(entry["shape"]).copy()
