"""The role `data`: describes the task, and reads and collates samples ahead of the devices.

One process per loader thread; `engine.py` gives it requests. It never touches a GPU.
"""
import contextlib
import math
import os
import shutil
import tempfile

import numpy as np

from . import arrays, keys, sample_context
from .channel import bits_float, float_bits, map_file, memory_file
from .errors import EngineError, no_torch, place
from .task import Metric, Task
from .task_file import LoadedTask

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".index.json")


class DataRole:
    """Answers the requests of the role `data`."""

    def __init__(self, hello):
        self.seed = hello["seed"]
        self.loaded = None
        self.model = None
        self.datasets, self.sizes = {}, {}
        try:
            import torch
        except ImportError as error:
            raise EngineError("task", no_torch(error)) from None
        torch.set_num_threads(1)

    def hello(self):
        """What the answer to `hello` says besides the versions: the devices of this machine."""
        return {"devices": usable_devices()}

    def handle(self, request, descriptors):
        """Answers a request: the content of `ok`, and descriptors to send."""
        do = request["do"]
        if do == "open":
            return self.open(request)
        if do == "initial":
            return self.initial(request["seed"], descriptors[0]), []
        if do == "collate":
            return self.collate(request["split"], request["samples"], request["epoch_key"])
        if do == "metrics":
            return self.metrics(request), []
        raise EngineError("task", f"the role `data` does not know the request {do!r}")

    def open(self, request):
        """Loads the task. Describes it and its model, unless the request says that this is known."""
        if request["task"] != "python":
            raise EngineError("task", f"this package reads data of the task `python` only, not of {request['task']!r}")
        self.loaded = LoadedTask(request["config"])
        self.terms = self.loaded.terms()
        if request.get("describe", True) is False:
            return {}, []
        return self._describe()

    def _describe(self):
        from . import batch_norm, data_fingerprint, dropout, model_state
        loaded, task = self.loaded, self.loaded.task
        splits, lengths, data = {}, [], []
        for split in ("train", "valid"):
            dataset = self.dataset(split)
            if dataset is None:
                continue
            of_split = self._lengths(split, dataset)
            splits[split] = {"samples": self.sizes[split], "has_lengths": of_split is not None}
            lengths += [] if of_split is None else [of_split]
            data.append(data_fingerprint.of_samples(self.sizes[split], of_split, lambda at: self._read(split, [at], keys.root(0))[0]))
        if "train" not in splits:
            raise EngineError("task", f'{place(task.dataset, loaded.folder)}: dataset("train") returned None: there is nothing to train on')

        model = self.model = loaded.model(self.seed).train()
        batch_norm.refuse(model)
        entries = model_state.state_entries(model)
        with loaded.user_code("task", "groups"):
            groups = list(task.groups(model) or [])
        settings = model_state.group_settings(model, groups, place(task.groups, loaded.folder))
        parameters = []
        for entry in entries:
            described = {"name": entry.name, "shape": list(entry.tensor.shape), "trainable": entry.trainable}
            lr_scale, decays = settings.get(id(entry.tensor), (1.0, None))
            if entry.trainable:
                described.update(lr_scale=lr_scale, decays=decays)
            parameters.append(described)
        code = data_fingerprint.of_code(loaded.folder, loaded.file)
        rest = model_state.fingerprint_of_rest(model)
        answer = {
            "parameters": parameters,
            "terms": [{"name": name, "weight": weight} for name, weight in self.terms],
            "scores": [str(name) for name in task.scores],
            "splits": splits,
            # In words, so that a message that shows two of them shows what differs.
            "fingerprint": f"data {'/'.join(data)}, model {rest}",
            "code": code,
            "config": loaded.config,
            "path_keys": loaded.path_keys,
            "export_dir": self._export(model),
            "notes": _notes(model, entries, dropout.unkeyed_dropout(model)),
        }
        return answer, [memory_file(lengths)] if lengths else []

    def dataset(self, split):
        """The dataset of a split, opened when first used. None if there is none."""
        if split not in self.datasets:
            loaded = self.loaded
            with loaded.user_code("data", f"dataset({split!r})"):
                dataset = loaded.task.dataset(split)
            where = f"{place(loaded.task.dataset, loaded.folder)}: dataset({split!r})"
            if dataset is not None:
                if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
                    raise EngineError("data", f"{where} returned a {type(dataset).__name__} without __len__ or __getitem__. HetSeq needs any sample by its number: "
                                      "use a map-style dataset")
                with loaded.user_code("data", f"len of dataset({split!r})"):
                    self.sizes[split] = len(dataset)
                if not 0 <= self.sizes[split] < 1 << 32:
                    raise EngineError("data", f"{where} has {self.sizes[split]} samples: at most 2^32 - 1 are supported")
            self.datasets[split] = dataset
        return self.datasets[split]

    def _lengths(self, split, dataset):
        if not hasattr(dataset, "lengths"):
            return None
        with self.loaded.user_code("data", f"lengths of dataset({split!r})"):
            lengths = dataset.lengths() if callable(dataset.lengths) else dataset.lengths
            lengths = np.asarray(lengths)
        expected = self.sizes[split]
        if lengths.shape != (expected,) or lengths.dtype.kind not in "iu":
            raise EngineError("data", f"lengths() of dataset({split!r}) must be {expected} integers, one per sample. It has the shape {list(lengths.shape)} "
                              f"and the type {lengths.dtype}")
        if expected and not 1 <= lengths.min() <= lengths.max() < 1 << 32:
            raise EngineError("data", f"lengths() of dataset({split!r}) must be from 1 to 2^32 - 1 tokens, and are from {lengths.min()} to {lengths.max()}")
        return lengths.astype("<u4")

    def _export(self, model):
        loaded = self.loaded
        if type(loaded.task).export is Task.export:
            return None
        directory = tempfile.mkdtemp(prefix="hetseq-export-")
        try:
            with loaded.user_code("task", "export"):
                loaded.task.export(model, directory)
            for folder, _, files in os.walk(directory):
                for file in files:
                    if file.endswith(_WEIGHTS):
                        os.remove(os.path.join(folder, file))
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return directory

    def initial(self, seed, descriptor):
        """Writes the values of a new model, in the order of `open`'s parameters."""
        from .model_state import state_entries
        out = np.frombuffer(map_file(descriptor), np.float32)
        if self.model is None or seed != self.seed:
            self.model = self.loaded.model(seed)
        at = 0
        for entry in state_entries(self.model):
            values = entry.tensor.detach().float().contiguous().reshape(-1).numpy()
            if at + len(values) > len(out):
                break
            out[at:at + len(values)] = values
            at += len(values)
        if at != len(out):
            raise EngineError("task", f"model() has another number of values than before: HetSeq expects {len(out)}. It must build the same model each time")
        self.model = None
        return {}

    def collate(self, split, samples, epoch_key):
        """Reads and collates one micro-batch."""
        # From here on only samples are read. `initial` builds the model again if it is needed.
        self.model = None
        loaded, task = self.loaded, self.loaded.task
        values = self._read(split, samples, epoch_key)
        with self._context(samples, epoch_key):
            # Reproducible, but not the same for every split: randomness in collate needs hetseq.rng(i).
            sample_context.seed_generators(keys.name(keys.index(epoch_key, samples[0] if samples else 0), "collate"))
            with loaded.user_code("data", "collate"):
                batch = task.collate(values)
            with loaded.user_code("data", "counts"):
                counts = task.counts(batch)
            counts = self._counts(counts)
            packed, tree, descriptor = arrays.pack(batch)
        answer = {"counts": counts, "arrays": packed, "tree": tree}
        return answer, [] if descriptor is None else [descriptor]

    def _read(self, split, samples, epoch_key):
        loaded, dataset = self.loaded, self.dataset(split)
        name = f"dataset({split!r})"
        if dataset is None:
            raise EngineError("data", f"{name} returned None, but samples of it are needed")
        with loaded.user_code("data", f"len of {name}"):
            size = len(dataset)
        if size != self.sizes[split] or samples and max(samples) >= size:
            started = max(self.sizes[split], max(samples, default=0) + 1)
            raise EngineError("data", f"{place(loaded.task.dataset, loaded.folder)}: {name} has {size} samples, but had {'at least ' * (size == self.sizes[split])}{started} "
                              "when the run started. A dataset must not change during a run")
        values = []
        with self._context(samples, epoch_key):
            for position, sample in enumerate(samples):
                sample_context.read_sample(position)
                with loaded.user_code("data", f"sample {sample} of {name}"):
                    values.append(dataset[sample])
        return values

    @contextlib.contextmanager
    def _context(self, samples, key):
        sample_context.begin(samples, key)
        try:
            yield
        finally:
            sample_context.end()

    def _counts(self, counts):
        """What `counts` returned, as a list in the order of the terms."""
        where = place(self.loaded.task.counts, self.loaded.folder)
        names = [name for name, _ in self.terms]
        if not isinstance(counts, dict):
            if len(names) > 1:
                raise EngineError("task", f"{where}: returned {counts!r}, but the task has several loss terms: return a dict with {', '.join(names)}")
            counts = {names[0]: counts}
        if set(counts) != set(names):
            raise EngineError("task", f"{where}: returned counts of {', '.join(map(str, counts)) or 'nothing'}, but the loss terms are {', '.join(names)}")
        return [as_count(counts[name], name, where) for name in names]

    def metrics(self, request):
        """The metrics of a validation, from its sums."""
        loaded, names = self.loaded, [name for name, _ in self.terms]
        # At least 1, so that a mean over an empty validation, of which only names matter, is no error.
        counts = [max(count, 1) for count in request["counts"]] or [1] * len(names)
        losses = [bits_float(bits) for bits in request["losses"]] or [0.0] * len(names)
        scores = [bits_float(bits) for bits in request["scores"]] or [0.0] * len(loaded.task.scores)
        sums = {"samples": max(request["samples"], 1), "counts": dict(zip(names, counts)), **dict(zip(names, losses)),
                **dict(zip(loaded.task.scores, scores))}
        where = place(loaded.task.metrics, loaded.folder)
        with loaded.user_code("task", "metrics"):
            metrics = loaded.task.metrics(sums)
            if not isinstance(metrics, dict):
                raise EngineError("task", f"{where}: must return a dict of numbers, not {type(metrics).__name__}")
            answer = []
            for name, value in metrics.items():
                metric = value if isinstance(value, Metric) else Metric(value, "higher")
                answer.append({"name": str(name), "value": float_bits(float(metric.value)), "better": metric.better})
        return {"metrics": answer}


def usable_devices():
    """PyTorch's names of the GPUs of this machine, or `cpu` if there are none."""
    import torch
    found = [f"{kind}:{at}" for kind in ("cuda", "xpu") if hasattr(torch, kind) for at in range(getattr(torch, kind).device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found or ["cpu"]


def as_count(value, term, where):
    """A count as an integer; an error if it is none."""
    value = value.item() if hasattr(value, "item") and getattr(value, "shape", None) in ((), (1,)) else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or int(value) != value or value < 0:
        raise EngineError("task", f"{where}: the count of the loss term {term!r} is {value!r}: expected an integer from 0, the number that the loss sum is divided by")
    return int(value)


def _notes(model, entries, unkeyed):
    notes = []
    if unkeyed:
        shown = ", ".join(unkeyed[:3]) + (f" and {len(unkeyed) - 3} more" if len(unkeyed) > 3 else "")
        notes.append(f"dropout that is not keyed by sample ({shown}): right in expectation, not the same for every split of the work. "
                     "Use hetseq.Dropout, or call hetseq.key_dropout(model) in model()")
    other = sorted({str(entry.tensor.dtype).replace("torch.", "") for entry in entries if str(entry.tensor.dtype) != "torch.float32"})
    if other:
        notes.append(f"parameters of type {', '.join(other)} are trained and stored as float32; run.precision says in which type to compute")
    return notes
