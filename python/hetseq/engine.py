"""The engine process: `python -m hetseq.engine`, started by HetSeq, one per device and loader thread.

Reads requests from its standard input, a socket, and passes them to a role: `data.py` or `device.py`.
The protocol is in docs/engine-protocol.md. `python -m hetseq.engine --devices` lists devices instead.
"""
import os

# Before NumPy and PyTorch are imported: threads that wait must not take the CPU from HetSeq's own.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Lets `hetseq.run` notice that it was called by a task file without `if __name__ == "__main__"`.
os.environ["HETSEQ_ENGINE"] = "1"

import ctypes
import gc
import json
import platform
import signal
import sys
import traceback

from . import __version__
from .channel import Channel
from .errors import EngineError, no_torch
from .original import warn_of_original

PROTOCOL = 1


def main():
    """Lists devices, or serves HetSeq until it closes the channel."""
    if sys.argv[1:] == ["--devices"]:
        return list_devices()
    if sys.argv[1:]:
        sys.exit(f"usage: python -m hetseq.engine [--devices]; not {' '.join(sys.argv[1:])}")
    parent = os.getppid()
    channel = Channel.from_stdin()
    # HetSeq handles Ctrl-C, which the terminal sends to all processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)
    warn_of_original()
    try:
        serve(channel)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    # Without clean-up: nothing here outlives the process, and PyTorch takes long to unload.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def serve(channel):
    """Answers requests until the channel closes or `stop`."""
    role = None
    while True:
        request, descriptors = channel.receive()
        if request is None:
            return
        answers = []
        try:
            if request["do"] == "hello":
                role, answer = open_role(request, channel)
            elif request["do"] == "stop":
                answer = {}
            elif role is None:
                raise EngineError("device", f"the first request must be hello, not {request['do']!r}")
            else:
                answer, answers = role.handle(request, descriptors)
            message = {"ok": answer}
        except EngineError as error:
            message = {"error": {"kind": error.kind, "message": error.message}}
        except (EOFError, OSError):
            raise
        except Exception as error:
            traceback.print_exc()
            message = {"error": {"kind": "device", "message": f"hetseq.engine failed in {request['do']!r}: {type(error).__name__}: {error}"}}
        channel.send(message, answers)
        for descriptor in answers:
            os.close(descriptor)
        if request["do"] == "stop":
            return
        if request["do"] in ("layout", "initial"):
            # What exists now stays: later collections need not look at it.
            gc.collect()
            gc.freeze()


def open_role(request, channel):
    """The role that `hello` names, and the answer to it."""
    if request["protocol"] != PROTOCOL:
        raise EngineError("device", f"HetSeq {request.get('version', '')} speaks version {request['protocol']} of the engine protocol, and this package ({__version__}, "
                          f"{os.path.dirname(__file__)}) version {PROTOCOL}. Install the package of the same release")
    if request["role"] == "data":
        from .data import DataRole
        role = DataRole(request)
    elif request["role"] == "device":
        from .device import DeviceRole
        role = DeviceRole(request, channel)
    else:
        raise EngineError("device", f"this engine has the roles data and device, not {request['role']!r}")
    return role, {"protocol": PROTOCOL, "engine": "torch", "version": __version__, "versions": versions(), **role.hello()}


def versions():
    """Versions that HetSeq records."""
    import numpy
    import torch
    found = {"python": platform.python_version(), "numpy": numpy.__version__, "torch": torch.__version__}
    if torch.version.cuda or torch.version.hip:
        found["cuda" if torch.version.cuda else "hip"] = torch.version.cuda or torch.version.hip
    return found


def end_with_parent(parent):
    """Asks Linux to end this process with the thread that started it."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def list_devices():
    """Prints one line of JSON: this Python's devices, or an error."""
    found = {"python": sys.executable, "version": __version__}
    try:
        import torch
        from .device import check_version, device_memory, device_name
        check_version(torch)
        devices = [torch.device(kind, at) for kind in ("cuda", "xpu") if hasattr(torch, kind) for at in range(getattr(torch, kind).device_count())]
        if torch.backends.mps.is_available():
            devices.append(torch.device("mps"))
        devices.append(torch.device("cpu"))
        described = [{"name": f"torch:{device}", "description": device_name(device), "memory_bytes": device_memory(device)} for device in devices]
        found.update(torch=torch.__version__, devices=described)
    except ImportError as error:
        found.update(torch=None, devices=[], error=no_torch(error))
    except EngineError as error:
        found.update(torch=None, devices=[], error=error.message)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
