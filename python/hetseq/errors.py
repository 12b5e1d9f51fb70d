"""Errors as the protocol sends them: a kind, and one line that names the user's file and line.

Both roles run the user's code inside `user_code`; `engine.py` sends what it raises.
"""
import contextlib
import os
import sys
import sysconfig
import traceback

PACKAGE = os.path.dirname(os.path.abspath(__file__))
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
_DEVICE_FAILED = ("cuda error", "hip error", "cudnn error", "cublas error", "cudnn_status", "cublas_status", "mps backend", "xpu error")


class EngineError(Exception):
    """An error that is sent to HetSeq. `kind` is one of the protocol's."""

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind, self.message = kind, message


@contextlib.contextmanager
def user_code(kind, doing, folder=None):
    """Turns exceptions of the user's code into errors of `kind`.

    `doing` is used if no line of the user's code is in the trace. File names are relative to
    `folder`, the task file's.
    """
    try:
        yield
    except EngineError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error) and kind == "task":
            raise EngineError("out-of-memory", _first_lines(error)) from None
        traceback.print_exc(file=sys.stderr)
        if has_device_failed(error):
            raise EngineError("device", _first_lines(error)) from None
        where = _where(error, folder) or doing
        raise EngineError(kind, f"{where}: {_first_lines(error)}") from None


def is_out_of_memory(error):
    """Whether the device has no memory for this micro-batch."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error).lower() for phrase in _OUT_OF_MEMORY)


def has_device_failed(error):
    """Whether the device failed, not the user's code."""
    text = str(error).lower()
    # An assert in a kernel is a wrong index or label: the same on every device.
    if not isinstance(error, RuntimeError) or "device-side assert" in text:
        return False
    return any(phrase in text for phrase in _DEVICE_FAILED)


def place(function, folder=None):
    """Where a function of the user is, for errors about what it returned."""
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename.startswith(PACKAGE + os.sep):
        return getattr(function, "__name__", str(function))
    return f"{_short(code.co_filename, folder)}:{code.co_firstlineno}, in {code.co_name}"


def no_torch(error):
    """The message for a Python without a usable PyTorch."""
    return f"{sys.executable} cannot import torch ({error}). Install PyTorch 2.4 or newer for this Python, or set run.python to one that has it"


def _where(error, folder):
    """The last frame of the user's code, which is the first that the user can change."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename, folder)}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if folder and frame.filename.startswith(folder + os.sep) and not _is_library(frame.filename)]
    others = [frame for frame in frames if not _is_library(frame.filename)]
    for frame in reversed(own or others):
        return f"{_short(frame.filename, folder)}:{frame.lineno}, in {frame.name}"
    return None


def _is_library(path):
    # A virtual environment may be in the task's folder.
    return path.startswith("<") or "site-packages" in path or path.startswith(_LIBRARIES) or path.startswith(PACKAGE + os.sep)


def _short(path, folder):
    return os.path.relpath(path, folder) if folder and path.startswith(folder + os.sep) else path


def _first_lines(error, limit=600):
    """The exception's type and text, short enough for one message."""
    if isinstance(error, SystemExit):
        return f"the task called sys.exit({error.code!r})"
    text = traceback.format_exception_only(type(error), error)[-1].strip()
    name, _, rest = text.partition(": ")
    text = f"{name.rsplit('.', 1)[-1]}: {rest}" if rest else name
    return text if len(text) <= limit else text[:limit] + " ..."
