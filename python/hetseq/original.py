"""Detects the original HetSeq of PyPI, whose package has the same import name.

Called by `run.py` and `engine.py`.
"""
import importlib.metadata
import os
import sys


def warn_of_original():
    """Warns if both are installed in one place: files of one then replace those of the other."""
    try:
        theirs = importlib.metadata.distribution("hetseq").locate_file("hetseq")
    except (importlib.metadata.PackageNotFoundError, OSError):
        return False
    ours = os.path.dirname(os.path.abspath(__file__))
    if os.path.realpath(str(theirs)) != os.path.realpath(ours):
        return False
    print(f"warning: the original HetSeq (distribution `hetseq`) is installed in the same environment, and both use the folder {ours}. "
          "Run: pip uninstall hetseq && pip install --force-reinstall --no-deps hetseq-rs", file=sys.stderr)
    return True
