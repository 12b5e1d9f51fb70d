"""`python -m hetseq ARGUMENTS` runs the `hetseq` binary. Its engines use this Python, unless the
config names another."""
import sys

from .run import run_binary

if __name__ == "__main__":
    sys.exit(run_binary(sys.argv[1:]))
