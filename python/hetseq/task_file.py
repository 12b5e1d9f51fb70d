"""Loads the user's task from its file. Called by both roles when a run opens."""
import importlib.util
import os
import random
import sys

import numpy as np

from .errors import EngineError, user_code
from .task import Task


class LoadedTask:
    """The user's task object and where it comes from."""

    def __init__(self, config):
        self.file = os.path.abspath(os.path.expanduser(config.get("file") or ""))
        self.folder = os.path.dirname(self.file)
        if not isinstance(config.get("file"), str):
            raise EngineError("task", 'the [task] table needs file = "my_task.py", the file with your Task class')
        if not os.path.isfile(self.file):
            raise EngineError("task", f"{self.file}, the task file, does not exist. Relative paths start at the directory in which you start hetseq")
        task_class = _find_class(self._module(), config.get("class"), self.file)
        self.path_keys = ["file", *task_class.paths]
        self.config = _with_absolute_paths(config, self.path_keys)
        own = {key: value for key, value in self.config.items() if key not in ("file", "class")}
        with self.user_code("task", "__init__"):
            self.task = task_class(own)
        self.compile = bool(own.get("compile", self.task.compile))
        self.tf32 = bool(own.get("tf32", self.task.tf32))

    def user_code(self, kind, doing):
        """Runs code of the user: its exceptions become errors with its file and line."""
        return user_code(kind, doing, self.folder)

    def model(self, seed):
        """Builds the model, after seeding all generators with the run's seed."""
        import torch
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        torch.manual_seed(seed)
        with self.user_code("task", "model"):
            model = self.task.model()
        if not isinstance(model, torch.nn.Module):
            raise EngineError("task", f"model() must return a torch.nn.Module, not {type(model).__name__}")
        return model

    def terms(self):
        """The loss terms: a list of (name, weight)."""
        with self.user_code("task", "terms"):
            terms = self.task.terms()
            if not isinstance(terms, dict) or not terms:
                raise EngineError("task", f'terms() must return a dict of weights such as {{"loss": 1.0}}, not {terms!r}')
            return [(str(name), float(weight)) for name, weight in terms.items()]

    def _module(self):
        name = os.path.splitext(os.path.basename(self.file))[0]
        # A task may have the name of a module that is loaded already, such as `digits` or `random`.
        name = name if name not in sys.modules and name.isidentifier() else "hetseq_task"
        spec = importlib.util.spec_from_file_location(name, self.file)
        if spec is None:
            raise EngineError("task", f"{self.file}: the task file's name must end with .py")
        module = importlib.util.module_from_spec(spec)
        # As when Python runs the file: modules beside it can be imported, and classes found by name.
        sys.path.insert(0, self.folder)
        sys.modules[name] = module
        with self.user_code("task", os.path.basename(self.file)):
            spec.loader.exec_module(module)
        return module


def _find_class(module, wanted, file):
    name = os.path.basename(file)
    tasks = {key: value for key, value in vars(module).items()
             if isinstance(value, type) and issubclass(value, Task) and value is not Task}
    own = {key: value for key, value in tasks.items() if value.__module__ == module.__name__}
    if wanted is not None:
        if wanted not in tasks:
            raise EngineError("task", f"{name} has no subclass of hetseq.Task called {wanted!r} (task.class). It has: {', '.join(sorted(tasks)) or 'none'}")
        return tasks[wanted]
    if "Task" in own:
        return own["Task"]
    if len(own) == 1:
        return next(iter(own.values()))
    if own:
        raise EngineError("task", f"{name} has several tasks: {', '.join(sorted(own))}. Choose one with task.class")
    raise EngineError("task", f"{name} has no subclass of hetseq.Task. Write: class Task(hetseq.Task)")


def _with_absolute_paths(config, path_keys):
    config = dict(config)
    absolute = lambda path: os.path.abspath(os.path.expanduser(path)) if isinstance(path, str) else path
    for key in path_keys:
        value = config.get(key)
        if isinstance(value, (str, list)):
            config[key] = [absolute(path) for path in value] if isinstance(value, list) else absolute(value)
    return config
