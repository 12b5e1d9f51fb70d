"""The model on one device: parameters in, losses and gradients out. `device.py` drives it.

Parameters are views of one flat buffer, each aligned to 64 bytes (in HetSeq's files they follow each
other without gaps, which is slow for matrix products). On the CPU, gradients are views of HetSeq's
file itself: a fresh gradient is copied there once, as soon as it is known, and later micro-batches add
to it in place. So nothing is ever cleared. Other devices collect gradients in a flat buffer of their
own and copy that.
"""
import contextlib
import gc
import resource
import sys

import torch

from . import batch_norm, dropout, keys, sample_context
from .channel import map_file
from .errors import EngineError, place
from .loss_sums import loss_sums, score_sums
from .model_state import state_entries

ALIGNMENT = 16  # values of f32
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Replica:
    """A task's model on a device."""

    def __init__(self, loaded, device, precision, seed):
        self.loaded, self.device, self.precision = loaded, device, precision
        self.terms = [name for name, _ in loaded.terms()]
        model = loaded.model(seed).train()
        batch_norm.refuse(model)
        state_entries(model)
        with loaded.user_code("task", "model"):
            self.model = model.to(device)
        # Again, because the buffers are other objects now.
        self.entries = {entry.name: entry for entry in state_entries(model)}
        for entry in self.entries.values():
            # Masters in f32: HetSeq's optimizer and its checkpoints have no other type.
            entry.tensor.data = entry.tensor.data.float()
        dropout.name_sites(model)
        self.has_unkeyed_dropout = bool(dropout.unkeyed_dropout(model))
        self.is_training = True
        # What `loss` gets: the model, or its compiled form.
        self.callable = torch.compile(model) if loaded.compile else model
        self.computes = 0

    # Layout and parameters

    def place(self, layout, parameter_file, gradient_file):
        """Moves the parameters into a flat buffer, in HetSeq's order. Closes the descriptors."""
        self.file = _floats(parameter_file, layout["length"])
        self.gradient_file = _floats(gradient_file, layout["trainable_length"])
        self._check_names(layout["parameters"])
        if self.device.type == "cuda":
            _lock_pages(self.file)
            _lock_pages(self.gradient_file)
        tensors = [self.entries[parameter["name"]].tensor for parameter in layout["parameters"]]
        starts = [0]
        for tensor in tensors:
            starts.append(starts[-1] + -(-tensor.numel() // ALIGNMENT) * ALIGNMENT)
        placed = list(zip(layout["parameters"], tensors, starts))
        self._place_parameters(placed, starts[-1])
        self._place_gradients([part for part in placed if part[0]["trainable"]])

    def _place_parameters(self, placed, length):
        self.flat = _aligned_zeros(length, self.device)
        self.strided, segments = [], []
        for parameter, tensor, start in placed:
            size, offset = tensor.numel(), parameter["offset"]
            if tensor.is_contiguous():
                view = self.flat[start:start + size].view(tensor.shape)
                segments.append((offset, start, size))
            else:
                # Keeps the order in memory that the user chose, such as channels last.
                view = torch.empty_like(tensor)
                self.strided.append((offset, size, view))
            view.copy_(tensor.detach())
            tensor.data = view
            # The run's config may freeze more than the model does.
            tensor.requires_grad_(parameter["trainable"])
        self.segments = _merged(segments)

    def _place_gradients(self, placed):
        # None on the CPU, where gradients are written to the file itself.
        self.gradient_buffer, self.gradient_segments = None, []
        if self.device.type != "cpu":
            length = max((start + tensor.numel() for _, tensor, start in placed), default=0)
            self.gradient_buffer = torch.zeros(length, device=self.device)
            self.gradient_segments = _merged([(parameter["offset"], start, tensor.numel()) for parameter, tensor, start in placed])
        self.trained = []
        for parameter, tensor, start in placed:
            flat, at = (self.gradient_file, parameter["offset"]) if self.gradient_buffer is None else (self.gradient_buffer, start)
            self._collect(parameter["name"], tensor, flat[at:at + tensor.numel()].view(tensor.shape))

    def _check_names(self, parameters):
        given, own = {parameter["name"]: parameter for parameter in parameters}, self.entries
        missing, extra = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
        same = "model() must build the same model on every machine"
        if missing or extra:
            raise EngineError("task", f"the model has other parameters than the run: {_some('only the model has', missing)}{_some('only the run has', extra)}{same}")
        for name, parameter in given.items():
            shape = list(own[name].tensor.shape)
            if shape != list(parameter["shape"]):
                raise EngineError("task", f"the model's {name} has the shape {shape}, but {parameter['shape']} in the run: {same}")
            if parameter["trainable"] and not own[name].trainable:
                raise EngineError("task", f"the model's {name} requires no gradient, but is trained in the run: {same}")

    def _collect(self, name, tensor, view):
        """Has the gradient of a parameter collected in `view`."""
        self.trained.append((name, tensor, view))

        def store(parameter):
            gradient = parameter.grad
            if gradient.layout != torch.strided:
                raise EngineError("task", f"the gradient of {name} is sparse, which is not supported. Use sparse=False in this layer")
            if gradient.data_ptr() != view.data_ptr():
                view.copy_(gradient)
                parameter.grad = view

        tensor.register_post_accumulate_grad_hook(store)

    def load(self, count):
        """Copies the first `count` values of the parameter file into the model."""
        with torch.no_grad():
            for offset, start, size in self.segments:
                size = min(size, count - offset)
                if size > 0:
                    self.flat[start:start + size].copy_(self.file[offset:offset + size])
            for offset, size, view in self.strided:
                if offset < count:
                    view.copy_(self.file[offset:offset + size].view(view.shape))

    # Training

    def begin(self):
        """Starts an update: no gradients yet."""
        self._set_mode(training=True)
        for _, tensor, _ in self.trained:
            tensor.grad = None
        # A buffer that changes usually does so in the first update.
        self.buffers = {name: (buffer, buffer.clone()) for name, buffer in self.model.named_buffers()} if self.computes < 2 else None

    def micro_batch(self, batch, samples, counts, scales, loss_scale, update_key):
        """Computes the gradients of a micro-batch and adds them. Returns the loss sums."""
        loaded, task = self.loaded, self.loaded.task
        seed = keys.name(keys.index(update_key, samples[0] if samples else 0), "unkeyed")
        state = self._seed(seed)
        sample_context.begin(samples, update_key)
        try:
            with loaded.user_code("task", "loss"):
                with self._autocast():
                    result = task.loss(self.callable, batch)
                losses = loss_sums(result, self.terms, counts, place(task.loss, loaded.folder), self.device, training=True)
                objective = None
                for loss, scale in zip(losses, scales):
                    if loss.requires_grad:
                        part = loss * (scale * loss_scale if self.precision == "f16" else scale)
                        objective = part if objective is None else objective + part
                if objective is not None:
                    objective.backward()
                sums = [loss.item() for loss in losses]
        finally:
            sample_context.end()
        self._note_unkeyed(state)
        return sums

    def finish(self, micro_batches, loss_scale):
        """Completes the gradient file. Returns whether `f16` overflowed."""
        without = []
        for name, tensor, view in self.trained:
            if tensor.grad is None:
                view.zero_()
                without.append(name)
            elif tensor.grad.data_ptr() != view.data_ptr():
                view.copy_(tensor.grad)
        if self.buffers is not None and micro_batches:
            self._check_buffers()
        if self.computes == 0 and micro_batches and without:
            print(f"note: {_some('parameters without a gradient', without)}their gradients are zeros. Freeze them with requires_grad_(False) if they are not used", file=sys.stderr)
        self.computes += bool(micro_batches)
        overflow = False
        flat = self.gradient_file if self.gradient_buffer is None else self.gradient_buffer
        if self.precision == "f16" and micro_batches:
            flat.mul_(1.0 / loss_scale)
            overflow = not bool(torch.isfinite(flat).all())
        if self.gradient_buffer is not None:
            for offset, start, size in self.gradient_segments:
                self.gradient_file[offset:offset + size].copy_(flat[start:start + size])
        return overflow

    def forget(self):
        """Frees what a failed micro-batch left behind."""
        for _, tensor, _ in self.trained:
            tensor.grad = None
        gc.collect()
        if self.device.type in ("cuda", "xpu", "mps"):
            getattr(torch, self.device.type).empty_cache()

    # Evaluation

    def evaluate(self, batch, samples, counts):
        """Returns the loss sums and score sums of a micro-batch, without dropout and gradients."""
        loaded, task = self.loaded, self.loaded.task
        self._set_mode(training=False)
        sample_context.begin(samples, None)
        try:
            with loaded.user_code("task", "loss"), torch.no_grad(), self._autocast():
                result = task.loss(self.callable, batch)
                losses = loss_sums(result, self.terms, counts, place(task.loss, loaded.folder), self.device, training=False)
                scores = task.score(self.callable, batch) if task.scores else {}
                return [loss.item() for loss in losses], score_sums(scores, task.scores, place(task.score, loaded.folder))
        finally:
            sample_context.end()

    # Parts of the above

    def _set_mode(self, training):
        if training != self.is_training:
            self.model.train(training)
            self.is_training = training

    def _autocast(self):
        if self.precision == "f32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, DTYPES[self.precision])

    def _seed(self, seed):
        """Seeds the generators for randomness without keys: at least a repeated micro-batch repeats it.
        Returns their state, if it is still to be found out whether the model draws from them."""
        torch.default_generator.manual_seed(seed)
        if self.device.type in ("cuda", "xpu", "mps"):
            getattr(torch, self.device.type).manual_seed(seed)
        return None if self.computes or self.has_unkeyed_dropout else self._generators()

    def _generators(self):
        states = [torch.default_generator.get_state()]
        if self.device.type in ("cuda", "xpu"):
            states.append(getattr(torch, self.device.type).get_rng_state(self.device))
        return states

    def _note_unkeyed(self, before):
        if before is not None and any(not torch.equal(old, new) for old, new in zip(before, self._generators())):
            self.has_unkeyed_dropout = True
            print("note: the model draws random numbers that are not keyed by sample (F.dropout, dropout_p of attention, or the like): right in expectation, "
                  "not the same for every split of the work. Use hetseq.Dropout where you can", file=sys.stderr)

    def _check_buffers(self):
        for name, buffer in self.model.named_buffers():
            known, value = self.buffers.get(name, (None, None))
            if known is buffer and torch.equal(torch.nan_to_num(buffer), torch.nan_to_num(value)):
                continue
            if value is None or buffer.shape != value.shape or not torch.equal(torch.nan_to_num(buffer), torch.nan_to_num(value)):
                raise EngineError("task", f"the model's buffer {name} changed in training. Buffers are not exchanged between machines, so each would have its own. "
                                  "Update it outside of training, make it a parameter, or freeze it (for batch norm: hetseq.freeze_batch_norm or hetseq.group_norm)")
        self.buffers = None

    def held_bytes(self):
        """The peak memory of the device so far."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_reserved(self.device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _floats(descriptor, length):
    """A file of HetSeq as a tensor."""
    if length == 0:
        return torch.zeros(0)
    return torch.frombuffer(map_file(descriptor), dtype=torch.float32, count=length)


def _aligned_zeros(length, device):
    buffer = torch.zeros(length + ALIGNMENT, device=device)
    skip = -(buffer.data_ptr() // 4) % ALIGNMENT
    return buffer[skip:skip + length]


def _merged(segments):
    """Joins neighbours in the buffer that are neighbours in the file too: fewer, larger copies."""
    merged = []
    for offset, start, size in segments:
        if merged and (offset, start) == (merged[-1][0] + merged[-1][2], merged[-1][1] + merged[-1][2]):
            merged[-1] = (*merged[-1][:2], merged[-1][2] + size)
        else:
            merged.append((offset, start, size))
    return merged


def _lock_pages(tensor):
    """Page-locked memory is copied to and from a GPU at twice the speed. Not essential."""
    with contextlib.suppress(Exception):
        torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.numel() * 4, 0)


def _some(what, names):
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what}: {', '.join(names[:3])}{more}; "
