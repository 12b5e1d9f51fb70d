"""The role `device`: computes gradients and evaluations on one device with PyTorch.

`engine.py` gives it requests; `replica.py` has the model.
"""
import os
import platform
import time

from .arrays import Unpacker
from .channel import float_bits
from .errors import EngineError, has_device_failed, no_torch
from .task_file import LoadedTask

MINIMUM_TORCH = (2, 4)


class DeviceRole:
    """Answers the requests of the role `device`."""

    def __init__(self, hello, channel):
        self.channel = channel
        self.seed = hello["seed"]
        try:
            import torch
        except ImportError as error:
            raise EngineError("device", no_torch(error)) from None
        check_version(torch)
        torch.set_num_threads(max(1, hello["threads"]))
        name = hello["device"]
        try:
            self.device = torch.device(name)
            torch.zeros(1, device=self.device)
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
        except (RuntimeError, AssertionError) as error:
            raise EngineError("device", f"PyTorch {torch.__version__} cannot use the device {name!r}: {str(error).splitlines()[0]}") from None
        self.precision = _precision(torch, self.device, hello["precision"])
        self.unpacker = Unpacker(self.device)
        self.replica = None

    def hello(self):
        """What the answer to `hello` says besides the versions."""
        answer = {"precision": self.precision, "device_name": device_name(self.device)}
        memory = device_memory(self.device)
        return dict(answer, memory_bytes=memory) if memory else answer

    def handle(self, request, descriptors):
        """Answers a request: the content of `ok`, and descriptors to send."""
        do = request["do"]
        if do == "open":
            return self.open(request), []
        if do == "layout":
            self.replica.place(request, *descriptors)
            return {}, []
        if do == "load":
            self.replica.load(request["count"])
            return {}, []
        if do == "compute":
            return self.compute(request), []
        if do == "evaluate":
            return self.evaluate(request), []
        raise EngineError("device", f"the role `device` does not know the request {do!r}")

    def open(self, request):
        """Loads the task and builds its model."""
        import torch
        from .replica import Replica
        if request["task"] != "python":
            raise EngineError("task", f"devices of PyTorch compute the task `python` only: this run has {request['task']!r}")
        loaded = LoadedTask(request["config"])
        torch.backends.cuda.matmul.allow_tf32 = loaded.tf32
        torch.backends.cudnn.allow_tf32 = loaded.tf32
        self.replica = Replica(loaded, self.device, self.precision, self.seed)
        return {}

    def compute(self, request):
        """Gradients of an update's micro-batches."""
        replica, totals = self.replica, [0.0] * len(request["scales"])
        replica.begin()

        def run(batch, micro):
            return replica.micro_batch(batch, micro["samples"], micro["counts"], request["scales"], request["loss_scale"], request["update_key"])

        seconds = self._micro_batches(request["micro"], run, lambda sums: _add(totals, sums))
        overflow = replica.finish(request["micro"], request["loss_scale"])
        return {"losses": [float_bits(total) for total in totals], "seconds": seconds, "overflow": overflow, "held_bytes": replica.held_bytes()}

    def evaluate(self, request):
        """Loss sums and score sums of micro-batches."""
        replica = self.replica
        losses, scores = [0.0] * len(replica.terms), [0.0] * len(replica.loaded.task.scores)

        def add(sums):
            _add(losses, sums[0])
            _add(scores, sums[1])

        run = lambda batch, micro: replica.evaluate(batch, micro["samples"], micro["counts"])
        seconds = self._micro_batches(request["micro"], run, add)
        return {"losses": list(map(float_bits, losses)), "scores": list(map(float_bits, scores)), "seconds": seconds}

    def _micro_batches(self, count, run, add):
        """Receives and runs micro-batches. After an error it still receives them all."""
        seconds, failure = 0.0, None
        for number in range(1, count + 1):
            micro, descriptors = self.channel.receive()
            if micro is None:
                raise EOFError
            if failure is not None:
                for descriptor in descriptors:
                    os.close(descriptor)
                continue
            start = time.perf_counter()
            try:
                batch = self.unpacker.unpack(micro["arrays"], micro.get("tree"), descriptors[0] if descriptors else None)
                add(run(batch, micro))
            except EngineError as error:
                # A copy: the original's stack holds the tensors of the micro-batch.
                failure = EngineError(error.kind, error.message)
            except RuntimeError as error:
                if not has_device_failed(error):
                    raise
                failure = EngineError("device", str(error).splitlines()[0])
            seconds += time.perf_counter() - start
            batch = None
            if failure is None:
                self.channel.send({"done": number})
        if failure is not None:
            self.replica.forget()
            raise failure
        return seconds


def _add(totals, values):
    for at, value in enumerate(values):
        totals[at] += value


def check_version(torch):
    """Refuses a PyTorch that is too old."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < MINIMUM_TORCH:
        raise EngineError("device", f"PyTorch {torch.__version__} is too old: version 2.4 or newer is needed")


def _precision(torch, device, wanted):
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        # Emulated bf16 is slower than f32.
        return "bf16" if torch.cuda.get_device_capability(device)[0] >= 8 or torch.version.hip else "f16"
    return "bf16" if device.type == "xpu" else "f32"


def device_name(device):
    """The name of the hardware."""
    import torch
    if device.type in ("cuda", "xpu"):
        return getattr(torch, device.type).get_device_name(device)
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def device_memory(device):
    """The size of a device's own memory in bytes, None for devices that use the machine's."""
    import torch
    if device.type in ("cuda", "xpu"):
        return getattr(torch, device.type).get_device_properties(device).total_memory
    return None
