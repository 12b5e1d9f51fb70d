"""The base class of the user's tasks. `data.py` calls the half about data, `device.py` the half about the
model; `docs/pytorch.md` explains it with an example."""


class Task:
    """What to train: data, model and loss.

    Override `dataset`, `model` and `loss`; the rest is optional. Two rules make any mix of machines
    train like one device: losses are *sums* over samples, never means, because HetSeq divides by the
    count of the whole update; and no operation mixes samples, because HetSeq cuts micro-batches as it
    needs to.

        [run]                               [task]
        task = "python"                     file = "my_task.py"
                                            data = "some/folder"      # your own keys
    """

    #: Keys of the `[task]` table that hold paths. They are made absolute from the current directory,
    #: and may differ between machines.
    paths = ()

    #: Names of the sums that `score` returns.
    scores = ()

    #: Whether to compile the model with `torch.compile`. `compile = true` in the `[task]` table does the same.
    compile = False

    #: Whether matrix products in `f32` may use TF32 on NVIDIA's GPUs: faster, about three decimal digits.
    #: `tf32 = true` in the `[task]` table does the same.
    tf32 = False

    def __init__(self, config):
        """Gets the `[task]` table as a dict, without `file` and `class`."""
        self.config = config

    def dataset(self, split):
        """Returns the data of a split, "train" or "valid", or None if there is no such split.

        Any object with `__len__` and `__getitem__`. If it also has a method `lengths()` that returns
        the number of tokens of each sample, HetSeq uses it to balance work and to batch by tokens.
        Each loader process opens its own. Ordinary random augmentation in `__getitem__` is fine: the
        generators of `random`, NumPy and PyTorch are seeded for each sample and epoch.
        """
        raise NotImplementedError("the task has no method dataset(self, split)")

    def model(self):
        """Returns a `torch.nn.Module` on the CPU. PyTorch is seeded with `run.seed` before.

        Parameters that require gradients are trained. It may have pre-trained weights.
        """
        raise NotImplementedError("the task has no method model(self)")

    def collate(self, samples):
        """Makes a batch of a list of samples: any nesting of dicts, lists, tuples, named tuples and data
        classes of tensors and plain values. The default is PyTorch's `default_collate`."""
        from torch.utils.data import default_collate
        return default_collate(samples)

    def terms(self):
        """Returns the loss terms and their weights. Training minimises the sum over terms of
        `weight * loss sum / count`."""
        return {"loss": 1.0}

    def counts(self, batch):
        """Returns what the loss is divided by: an integer, or a dict of them by term.

        The default is the number of samples. If the batch is a dict with an integer tensor `labels`, it
        is the number of labels that are not -100, which PyTorch's `cross_entropy` ignores. Override it
        if `loss` sums over something else, such as shifted labels of a language model.
        """
        from .sample_context import sample_ids
        labels = batch.get("labels") if isinstance(batch, dict) else None
        if hasattr(labels, "is_floating_point") and not labels.is_floating_point():
            return int((labels != -100).sum())
        return len(sample_ids())

    def loss(self, model, batch):
        """Returns the loss *sum* of a batch (`reduction="sum"`), or a dict of them by term.

        Instead of a sum you may return `(sum, count)`: the count is then compared with `counts`.
        """
        raise NotImplementedError("the task has no method loss(self, model, batch)")

    def score(self, model, batch):
        """Returns a dict of sums, with the names in `scores`. Called after `loss` in validation, in
        evaluation mode and without gradients."""
        return {}

    def metrics(self, sums):
        """Returns a dict of metrics, computed from sums over all samples of a validation.

        `sums` has `samples` (their number), the loss sum of each term (`loss`), each score, and `counts`:
        a dict of the counts by term. Higher is better, unless you mark a value with `hetseq.lower`.
        Called once with empty sums, only to get the names.
        """
        return {}

    def groups(self, model):
        """Returns parameter groups: a list of `{"params": [...], "lr_scale": 1.0, "weight_decay": True}`.

        `params` are parameters or their names. `weight_decay` says whether they decay at all; how much is
        in `optim`. Without groups, weights of two or more dimensions decay, and others do not.
        """
        return []

    def export(self, model, directory):
        """Writes files that are added to each checkpoint, for example
        `model.config.save_pretrained(directory)`. Weights among them are ignored: each checkpoint has
        its own `model.safetensors`."""


class Metric:
    """A metric and which values of it are better. Made by `lower` and `higher`."""

    def __init__(self, value, better):
        self.value, self.better = value, better


def lower(value):
    """Marks a metric of which lower values are better."""
    return Metric(value, "lower")


def higher(value):
    """Marks a metric of which higher values are better, as if it was not marked."""
    return Metric(value, "higher")
