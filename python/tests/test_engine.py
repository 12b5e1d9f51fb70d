"""Real engine processes, driven by a fake host: every request, faults, and how a process ends."""
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy as np

from fake_host import EngineFailed, Host, PACKAGE, Run
from hetseq.channel import Channel

LINEAR, FAULTS = str(PACKAGE / "tests/tasks/linear.py"), str(PACKAGE / "tests/tasks/faults.py")


def is_waiting(stream):
    stream.setblocking(False)
    try:
        return bool(stream.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        stream.settimeout(120)


def is_alive(process):
    try:
        with open(f"/proc/{process}/status") as status:
            return "\nState:\tZ" not in status.read()
    except OSError:
        return False


class Requests(unittest.TestCase):
    def test_a_run(self):
        with Run({"file": LINEAR, "dropout": 0.5}, threads=2) as run:
            hello = run.greeting
            self.assertEqual((hello["protocol"], hello["engine"], hello["version"], hello["precision"]), (1, "torch", "0.1.0", "f32"))
            self.assertLessEqual({"python", "numpy", "torch"}, hello["versions"].keys())
            whole = run.compute([list(range(12))], scales=[0.5])
            gradients = run.gradients.copy()
            self.assertTrue(np.isfinite(gradients).all() and gradients.any())
            self.assertGreater(whole["seconds"], 0)
            self.assertGreater(whole["held_bytes"], 1 << 20)
            parts = run.compute([[0, 1, 2], [3], list(range(4, 12))], scales=[0.5])
            self.assertAlmostEqual(parts["losses"][0], whole["losses"][0], places=4)
            np.testing.assert_allclose(run.gradients, gradients, rtol=1e-5, atol=1e-5)
            run.parameters[:] = 0
            run.device.ask("load", count=run.layout["length"])
            self.assertAlmostEqual(run.compute([[0, 1]])["losses"][0], 2 * math.log(3), places=5)
            evaluated = run.evaluate([[0, 1, 2], [3]])
            self.assertAlmostEqual(evaluated["losses"][0], 4 * math.log(3), places=5)
            self.assertEqual(evaluated["scores"], [2.0])
            nothing = run.compute([])
            self.assertEqual((nothing["losses"], np.abs(run.gradients).max()), ([0.0], 0.0))
            self.assertEqual((run.device.ask("stop"), run.data.ask("stop")), ({}, {}))
            self.assertEqual((run.device.process.wait(20), run.data.process.wait(20)), (0, 0))

    def test_faults_of_the_users_code(self):
        with Run({"file": FAULTS}) as run:
            for samples, kind, text in [(90, "task", r"^task: faults.py:28, in loss: ValueError: bad batch$"), (91, "out-of-memory", "CUDA out of memory"), (93, "task", "in loss: the loss term 'loss' has no gradient")]:
                with self.assertRaisesRegex(EngineFailed, text) as caught:
                    run.compute([[samples], [1], [2, 3]])
                self.assertEqual(caught.exception.kind, kind)
                # One answer only, although two more micro-batches were sent.
                self.assertFalse(is_waiting(run.device.socket))
                fine = run.compute([[1], [2, 3]])
                self.assertTrue(np.isfinite(fine["losses"][0]))
            self.assertTrue(math.isnan(run.compute([[92]])["losses"][0]))
            self.assertTrue(np.isnan(run.gradients).any())
            with self.assertRaisesRegex(EngineFailed, "the score 'sum' is an object of type list"):
                run.evaluate([[95]])
            self.assertTrue(np.isfinite(run.compute([[94], [1]])["losses"][0]))
            with self.assertRaisesRegex(EngineFailed, "does not know the request 'dance'"):
                run.device.ask("dance")
        self.assertEqual(run.device.stdout + run.data.stdout, "")
        for line in ("garbage on stdout", "more garbage", "garbage of a child", "Traceback"):
            self.assertIn(line, run.device.stderr)
        self.assertEqual((run.device.process.returncode, run.data.process.returncode), (0, 0))

    def test_counts_that_differ_from_the_losss(self):
        with Run({"file": LINEAR}) as run:
            def other_count(request):
                request["counts"] = [5]
            with self.assertRaisesRegex(EngineFailed, r"task: linear.py:\d+, in loss: .* is a sum over 2, but counts\(\) returned 5"):
                run.compute([[1, 2]], edit=other_count)

    def test_f16_overflows(self):
        with Run({"file": LINEAR}, precision="f16") as run:
            self.assertEqual(run.greeting["precision"], "f16")
            self.assertFalse(run.compute([[0, 1]], loss_scale=128.0)["overflow"])
            gradients = run.gradients.copy()
            self.assertTrue(run.compute([[0, 1]], loss_scale=2.0**40)["overflow"])
            self.assertTrue(np.isfinite(gradients).all())


class Starts(unittest.TestCase):
    def test_hello_is_refused(self):
        with Host() as host:
            with self.assertRaisesRegex(EngineFailed, "the first request must be hello"):
                host.ask("open", task="python", config={})
            with self.assertRaisesRegex(EngineFailed, "speaks version 2 of the engine protocol.*version 1"):
                host.ask("hello", **{**host.hello, "protocol": 2})
            with self.assertRaisesRegex(EngineFailed, "roles data and device, not 'cook'"):
                host.ask("hello", **{**host.hello, "role": "cook"})
            with self.assertRaisesRegex(EngineFailed, r"^device: PyTorch .* cannot use the device 'cuda:77'"):
                host.ask("hello", **{**host.hello, "device": "cuda:77"})
            host.ask("hello", **host.hello)
            with self.assertRaisesRegex(EngineFailed, "devices of PyTorch compute the task `python` only: this run has 'images'"):
                host.ask("open", task="images", config={})
            with self.assertRaisesRegex(EngineFailed, "task: /nowhere.py, the task file, does not exist"):
                host.ask("open", task="python", config={"file": "/nowhere.py"})

    def test_without_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "torch.py"), "w") as file:
                file.write("raise ImportError('No module named torch')")
            environment = {"PYTHONPATH": f"{folder}:{PACKAGE}"}
            for role, kind in (("device", "device"), ("data", "task")):
                with Host(role, environment=environment) as host, self.assertRaisesRegex(EngineFailed, f"^{kind}: .*cannot import torch.*run.python"):
                    host.ask("hello", **host.hello)
            listed = subprocess.run([sys.executable, "-m", "hetseq.engine", "--devices"], env={**os.environ, **environment}, capture_output=True, text=True)
            found = json.loads(listed.stdout)
            self.assertEqual((listed.returncode, found["devices"], found["torch"]), (0, [], None))
            self.assertIn("cannot import torch", found["error"])

    def test_devices_are_listed(self):
        listed = subprocess.run([sys.executable, "-m", "hetseq.engine", "--devices"], env={**os.environ, "PYTHONPATH": str(PACKAGE)}, capture_output=True, text=True, check=True)
        found = json.loads(listed.stdout)
        self.assertEqual(found["devices"][-1]["name"], "torch:cpu")
        self.assertEqual(listed.stdout.count("\n"), 1)

    def test_without_a_socket(self):
        ended = subprocess.run([sys.executable, "-m", "hetseq.engine"], env={**os.environ, "PYTHONPATH": str(PACKAGE)}, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("is started by HetSeq", ended.stderr)


class Ends(unittest.TestCase):
    def test_it_ends_when_the_channel_closes(self):
        for partial in (b"", b"\x05", b"\x05\x00\x00\x00{"):
            host = Host()
            host.socket.sendall(partial)
            host.close()
            self.assertEqual((host.process.returncode, host.stderr), (0, ""))

    def test_ctrl_c_is_left_to_the_host(self):
        with Host("data") as host:
            host.ask("hello", **host.hello)
            host.process.send_signal(signal.SIGINT)
            time.sleep(0.2)
            self.assertIsNone(host.process.poll())
            host.ask("stop")

    @unittest.skipUnless(sys.platform == "linux", "Linux ends it with its parent")
    def test_it_ends_with_its_parent(self):
        # The parent leaves its socket open in this process, so only the signal can end the engine.
        here, there = socket.socketpair()
        script = f"import subprocess, sys, os; p = subprocess.Popen([sys.executable, '-m', 'hetseq.engine'], stdin={there.fileno()}); print(p.pid, flush=True); sys.stdin.read(1)"
        parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[there.fileno()], env={**os.environ, "PYTHONPATH": str(PACKAGE)}, text=True)
        engine = int(parent.stdout.readline())
        body = json.dumps({"do": "nothing"}).encode()
        here.sendall(struct.pack("<I", len(body)) + body)
        here.recv(4)
        parent.kill()
        parent.wait()
        parent.stdin.close()
        parent.stdout.close()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and is_alive(engine):
            time.sleep(0.05)
        self.assertLess(time.monotonic(), deadline)
        here.close()
        there.close()


class Framing(unittest.TestCase):
    def test_messages_in_pieces_and_large_ones(self):
        here, there = socket.socketpair()
        channel = Channel(there)
        message = {"do": "x", "list": list(range(100_000))}
        body = json.dumps(message).encode()

        def send():
            data = struct.pack("<I", len(body)) + body
            for piece in (data[:1], data[1:3], data[3:5], data[5:]):
                here.sendall(piece)
                time.sleep(0.01)

        sender = threading.Thread(target=send)
        sender.start()
        self.assertEqual(channel.receive(), (message, []))
        sender.join()
        sender = threading.Thread(target=channel.send, args=(message,))
        sender.start()
        self.assertEqual(Channel(here).receive(), (message, []))
        sender.join()
        here.sendall(struct.pack("<I", 1 << 30))
        with self.assertRaises(ConnectionError):
            channel.receive()
        with self.assertRaises(ValueError):
            channel.send({"not finite": math.nan})
        here.close()
        self.assertEqual(channel.receive(), (None, []))
        there.close()


if __name__ == "__main__":
    unittest.main()
