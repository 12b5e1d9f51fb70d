"""Starts the `hetseq` binary: `hetseq.run(Task, "run.toml")`, and `python -m hetseq`.

All work is done by the binary, which starts this package again as its engines (`engine.py`).
"""
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

from .original import warn_of_original
from .task import Task


def run(task, config, *arguments):
    """Trains a task: runs `hetseq train CONFIG` with this Python and the file of the task's class.

    `arguments` are further ones of `hetseq train`, such as `"--set", "optim.lr=0.01"`. For several machines,
    start the same program on each, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, as for
    torchrun. Returns when training is complete; exits with the binary's exit code if it is not 0.
    """
    if os.environ.get("HETSEQ_ENGINE"):
        raise RuntimeError('hetseq.run was called while HetSeq loads the task file. Put the call under: if __name__ == "__main__":')
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise TypeError(f"hetseq.run needs a subclass of hetseq.Task, not {task!r}")
    try:
        file = os.path.abspath(inspect.getfile(task))
    except (TypeError, OSError):
        raise ValueError(f"{task.__name__} is not defined in a file. Engines load the task from its file, so a notebook must import it from one") from None
    code = run_binary(["train", str(config), *setting("run.task", "python"), *setting("task.file", file), *setting("task.class", task.__qualname__),
                       *setting("run.python", sys.executable), *map(str, arguments)])
    if code:
        sys.exit(code)


def setting(key, value):
    """The `--set` for a string."""
    return "--set", f"{key}={json.dumps(value)}"


def run_binary(arguments):
    """Runs the binary and returns its exit code."""
    warn_of_original()
    binary = find_binary()
    # Without run.python in the config, the binary uses the first `python3` of PATH: make it this one.
    environment = {**os.environ, "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])}
    # Ctrl-C goes to the binary too, which saves a checkpoint; this process waits for it.
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT,)}
    try:
        child = subprocess.Popen([binary, *arguments], env=environment, preexec_fn=_restore_signals)
        previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
        code = child.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _restore_signals():
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def find_binary():
    """The path of the binary: HETSEQ_BINARY, else beside this Python, in the checkout, or on PATH."""
    named = os.environ.get("HETSEQ_BINARY")
    if named:
        if not os.access(named, os.X_OK):
            raise FileNotFoundError(f"HETSEQ_BINARY={named} is not an executable file")
        return named
    package = Path(__file__).resolve().parent
    candidates = [Path(sysconfig.get_path("scripts")) / "hetseq", Path(sys.executable).parent / "hetseq"]
    if package.parent.parent.joinpath("Cargo.toml").exists():
        candidates.insert(0, package.parent.parent / "target/release/hetseq")
    # A user's own installation, `pip install --user`.
    candidates.append(package.parents[3] / "bin/hetseq" if len(package.parents) > 3 else package)
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    found = shutil.which("hetseq")
    if found:
        return found
    raise FileNotFoundError("the binary `hetseq` was not found. Install the wheel hetseq-rs (scripts/build-wheel), build it (cargo build --release), or set HETSEQ_BINARY")
