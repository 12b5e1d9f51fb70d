"""`hetseq.run` and the package's surroundings: the binary, its arguments, versions, the original."""
import importlib.metadata
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

from fake_host import PACKAGE, REPOSITORY
import hetseq
from hetseq import original
from hetseq.run import find_binary, run_binary


class WithBinary(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def binary(self, script):
        path = os.path.join(self.folder, "hetseq")
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + script)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        os.environ["HETSEQ_BINARY"] = path
        self.addCleanup(os.environ.pop, "HETSEQ_BINARY", None)
        return path

    def test_run_passes_the_task_this_python_and_the_environment(self):
        out = os.path.join(self.folder, "out")
        self.binary(f'printf "%s\\n" "$@" "$RANK" > {out}\n')
        sys.path.insert(0, str(PACKAGE / "tests/tasks"))
        import linear
        with unittest.mock.patch.dict(os.environ, {"RANK": "3"}):
            self.assertIsNone(hetseq.run(linear.Task, "run.toml", "--set", "optim.lr=0.1"))
        with open(out) as file:
            lines = file.read().splitlines()
        self.assertEqual(lines, ["train", "run.toml", "--set", 'run.task="python"', "--set", f'task.file="{PACKAGE}/tests/tasks/linear.py"', "--set", 'task.class="Task"',
                                 "--set", f'run.python="{sys.executable}"', "--set", "optim.lr=0.1", "3"])

    def test_exit_codes_are_passed_on(self):
        self.binary("exit 75\n")
        with self.assertRaises(SystemExit) as caught:
            hetseq.run(type("T", (hetseq.Task,), {"__module__": __name__}), "run.toml")
        self.assertEqual(caught.exception.code, 75)
        self.binary("kill -9 $$\n")
        self.assertEqual(run_binary([]), 137)
        self.assertEqual(subprocess.run([sys.executable, "-m", "hetseq", "x"], env={**os.environ, "PYTHONPATH": str(PACKAGE)}).returncode, 137)

    def test_the_binary_handles_ctrl_c(self):
        self.binary('trap "exit 75" INT\necho ready\nwhile true; do sleep 0.1; done\n')
        child = subprocess.Popen([sys.executable, "-m", "hetseq"], env={**os.environ, "PYTHONPATH": str(PACKAGE)}, start_new_session=True, stdout=subprocess.PIPE, text=True)
        child.stdout.readline()
        time.sleep(0.2)
        os.killpg(child.pid, signal.SIGINT)
        self.assertEqual(child.wait(20), 75)
        child.stdout.close()

    def test_a_call_from_a_task_file_is_refused(self):
        with unittest.mock.patch.dict(os.environ, {"HETSEQ_ENGINE": "1"}), self.assertRaisesRegex(RuntimeError, "__main__"):
            hetseq.run(hetseq.Task, "run.toml")
        with self.assertRaisesRegex(TypeError, "needs a subclass"):
            hetseq.run(print, "run.toml")

    def test_the_binary_is_found(self):
        path = self.binary("")
        self.assertEqual(find_binary(), path)
        os.environ["HETSEQ_BINARY"] = "/nowhere"
        with self.assertRaisesRegex(FileNotFoundError, "HETSEQ_BINARY=/nowhere"):
            find_binary()
        del os.environ["HETSEQ_BINARY"]
        with unittest.mock.patch("os.access", lambda path, mode: str(path) == str(self.folder) + "/hetseq"), unittest.mock.patch("shutil.which", lambda name: None):
            with self.assertRaisesRegex(FileNotFoundError, "scripts/build-wheel"):
                find_binary()
        with unittest.mock.patch("sysconfig.get_path", lambda name: self.folder), unittest.mock.patch("hetseq.run.__file__", "/site-packages/hetseq/run.py"):
            self.assertEqual(find_binary(), path)


class Package(unittest.TestCase):
    def test_the_version_is_that_of_the_workspace(self):
        workspace = (REPOSITORY / "Cargo.toml").read_text()
        section = workspace[workspace.index("[workspace.package]"):]
        self.assertEqual(hetseq.__version__, re.search(r'^version = "(.+)"', section, re.M).group(1))

    def test_importing_the_package_imports_neither_torch_nor_numpy(self):
        script = "import sys, hetseq; hetseq.Task, hetseq.run; print([name for name in ('torch', 'numpy') if name in sys.modules])"
        out = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(PACKAGE)}, capture_output=True, text=True, check=True).stdout
        self.assertEqual(out, "[]\n")

    def test_all_names_exist(self):
        for name in hetseq.__all__:
            self.assertTrue(callable(getattr(hetseq, name)), name)
        with self.assertRaises(AttributeError):
            hetseq.nothing

    def test_the_original_in_the_same_place_is_detected(self):
        class Distribution:
            def __init__(self, folder):
                self.folder = folder
            def locate_file(self, path):
                return os.path.join(self.folder, path)
        for folder, expected in ((str(PACKAGE), True), ("/elsewhere", False)):
            with unittest.mock.patch("importlib.metadata.distribution", lambda name: Distribution(folder)), open(os.devnull, "w") as nothing, unittest.mock.patch("sys.stderr", nothing):
                self.assertIs(original.warn_of_original(), expected)
        def missing(name):
            raise importlib.metadata.PackageNotFoundError(name)
        with unittest.mock.patch("importlib.metadata.distribution", missing):
            self.assertFalse(original.warn_of_original())


if __name__ == "__main__":
    unittest.main()
