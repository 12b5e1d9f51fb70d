"""The role `data`, called directly: what it says about a task, the randomness of samples, and errors."""
import contextlib
import io
import json
import os
import shutil
import tempfile
import textwrap
import unittest

import numpy as np
import torch

from fake_host import PACKAGE, floats, memory_file
from hetseq import keys
from hetseq.arrays import Unpacker
from hetseq.channel import float_bits
from hetseq.data import DataRole
from hetseq.errors import EngineError

LINEAR = str(PACKAGE / "tests/tasks/linear.py")
START = """
import hetseq, torch, numpy, random
from torch import nn
class Task(hetseq.Task):
    def dataset(self, split):
        return [torch.ones(2)] * 10 if split == "train" else None
    def model(self):
        return nn.Linear(2, 1)
    def loss(self, model, batch):
        return model(batch).sum()
"""


class WithFiles(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, more="", start=START, name="my_task.py"):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(start + textwrap.indent(textwrap.dedent(more), "    "))
        return path

    def role(self, file, **config):
        role = DataRole({"seed": 7})
        return role, role.open({"task": "python", "config": {"file": file, **config}})

    def describe(self, more="", **config):
        return self.role(self.write(more), **config)[1][0]

    def assert_refused(self, text, act, kind="task"):
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaisesRegex(EngineError, text) as caught:
            act()
        self.assertEqual(caught.exception.kind, kind)
        self.assertLess(len(caught.exception.message), 900)


class Description(WithFiles):
    def test_parameters_splits_terms_and_lengths(self):
        role, (task, descriptors) = self.role(LINEAR, data="x", dropout=0.5)
        self.assertEqual([entry["name"] for entry in task["parameters"]], ["0.weight", "0.bias", "3.weight", "3.bias"])
        self.assertEqual(task["terms"], [{"name": "loss", "weight": 1.0}])
        self.assertEqual(task["splits"], {"train": {"samples": 40, "has_lengths": True}, "valid": {"samples": 12, "has_lengths": True}})
        with open(descriptors[0], "rb") as file:
            file.seek(0)
            lengths = np.frombuffer(file.read(), "<u4")
        self.assertEqual(lengths.tolist(), [1 + i % 4 for i in range(40)] + [1 + i % 4 for i in range(12)])
        self.assertEqual(task["config"]["data"], os.path.abspath("x"))
        self.assertEqual((task["path_keys"], task["scores"], task["export_dir"]), (["file", "data"], ["correct"], None))
        json.dumps(task, allow_nan=False)

    def test_initial_values_are_those_of_the_seeded_model(self):
        role, _ = self.role(LINEAR)
        for seed in (7, 8):
            descriptor, values = memory_file(5 * 7 + 7 + 21 + 3)
            role.initial(seed, descriptor)
            torch.manual_seed(seed)
            expected = torch.nn.Linear(5, 7)
            np.testing.assert_array_equal(values[:35], expected.weight.detach().numpy().ravel())

    def test_a_process_that_only_reads_builds_no_model(self):
        file = self.write("""
            def model(self):
                raise AssertionError
        """)
        role = DataRole({"seed": 1})
        self.assertEqual(role.open({"task": "python", "config": {"file": file}, "describe": False}), ({}, []))
        self.assertEqual(role.collate("train", [3, 1], 5)[0]["counts"], [2])

    def test_groups(self):
        groups = """
            def model(self):
                return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
            def groups(self, model):
                return [{"params": model[0].parameters(), "lr_scale": 0.1}, {"params": ["1.weight"], "weight_decay": False}]
        """
        found = {entry["name"]: (entry["lr_scale"], entry["decays"]) for entry in self.describe(groups)["parameters"]}
        self.assertEqual(found, {"0.weight": (0.1, None), "0.bias": (0.1, None), "1.weight": (1.0, False), "1.bias": (1.0, None)})
        for wrong, text in [('{"params": ["x"]}', "no parameter 'x'"), ('{"params": list(model.parameters()) * 2}', "weight is in two groups"), ('{"lr": 1}', "expected a dict"),
                            ('{"params": [], "lr": 1}', "unknown keys: lr"), ('{"params": [], "weight_decay": 0.1}', "must be True or False, not 0.1"),
                            ('{"params": [torch.ones(1)]}', "no parameter of the model"), ('{"params": [], "lr_scale": -1}', "lr_scale must be")]:
            self.assert_refused(r"my_task.py:\d+, in groups: group 0: .*" + text, lambda: self.describe(f"def groups(self, model):\n    return [{wrong}]\n"))

    def test_exported_files_without_weights(self):
        directory = self.describe("""
            def export(self, model, directory):
                import pathlib
                pathlib.Path(directory, "config.json").write_text("{}")
                pathlib.Path(directory, "pytorch_model.bin").write_text("x")
        """)["export_dir"]
        self.addCleanup(shutil.rmtree, directory)
        self.assertEqual(os.listdir(directory), ["config.json"])

    def test_notes(self):
        notes = self.describe("""
            def model(self):
                return nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.1)).bfloat16()
        """)["notes"]
        self.assertRegex(notes[0], r"not keyed by sample \(1\): right in expectation, not the same for every split.*key_dropout")
        self.assertRegex(notes[1], "type bfloat16 are trained and stored as float32")
        self.assertEqual(self.describe()["notes"], [])

    def test_the_fingerprint_is_of_code_data_and_the_rest_of_the_model(self):
        parts = lambda described: [described["code"], *described["fingerprint"].split(", ")]
        first = parts(self.describe())
        self.assertEqual(parts(self.describe("# a comment\n\n")), first)
        changed = lambda more: [old == new for old, new in zip(first, parts(self.describe(more)))]
        self.assertEqual(changed("x = 1\n"), [False, True, True])
        self.assertEqual(changed("def dataset(self, split):\n    return [torch.zeros(2)] * 10\n"), [False, False, True])
        self.assertEqual(changed("def dataset(self, split):\n    return [torch.ones(2)] * 11\n"), [False, False, True])
        self.assertEqual(changed("def model(self):\n    m = nn.Linear(2, 1)\n    m.register_buffer('ids', torch.arange(3))\n    return m\n"), [False, True, False])
        # A module beside the task file.
        with open(os.path.join(self.folder, "beside_the_task.py"), "w") as file:
            file.write("x = 1")
        self.describe("import beside_the_task\n")

    def test_the_class_is_found(self):
        two = START + "class Other(Task):\n    pass\n"
        self.assertEqual(self.role(self.write(start=two))[0].loaded.task.__class__.__name__, "Task")
        self.assertEqual(self.role(self.write(start=two), **{"class": "Other"})[0].loaded.task.__class__.__name__, "Other")
        self.assert_refused("no subclass of hetseq.Task called 'None_'.*Other, Task", lambda: self.role(self.write(start=two), **{"class": "None_"}))
        self.assert_refused("has several tasks: First, Other", lambda: self.role(self.write(start=two.replace("class Task(", "class First(").replace("Other(Task)", "Other(First)"))))
        self.assert_refused("no subclass of hetseq.Task. Write", lambda: self.role(self.write(start="x = 1\n")))
        self.assert_refused("does not exist", lambda: self.role("/nowhere/task.py"))
        self.assert_refused("needs file", lambda: self.role(None))


class Samples(WithFiles):
    def batch(self, role, samples, epoch_key=1):
        answer, descriptors = role.collate("train", samples, epoch_key)
        return Unpacker(torch.device("cpu")).unpack(answer["arrays"], answer["tree"], descriptors[0])

    def test_randomness_depends_on_the_sample_and_the_epoch_only(self):
        role, _ = self.role(LINEAR)
        whole, part = self.batch(role, [3, 5, 7]), self.batch(role, [7, 3])
        for name in ("noise", "own"):
            self.assertEqual(part[name].tolist(), [whole[name][2].item(), whole[name][0].item()])
            self.assertEqual(len(set(whole[name].tolist())), 3)
            self.assertNotEqual(self.batch(role, [7, 3], 2)[name].tolist(), part[name].tolist())

    def test_all_generators_are_seeded_and_rng_works_in_collate(self):
        role, _ = self.role(self.write("""
            def dataset(self, split):
                class Data:
                    def __len__(self): return 9
                    def __getitem__(self, i): return [random.random(), float(numpy.random.rand()), torch.rand(()).item()]
                return Data()
            def collate(self, samples):
                return {"x": torch.tensor(samples), "own": torch.tensor([hetseq.rng(i).random() for i in range(len(samples))]), "ids": hetseq.sample_ids()}
        """))
        whole, part = self.batch(role, [3, 5, 7]), self.batch(role, [5])
        self.assertTrue(torch.equal(whole["x"][1], part["x"][0]))
        self.assertEqual(len(set(whole["x"].flatten().tolist())), 9)
        self.assertEqual(whole["own"][1], part["own"][0])
        self.assertEqual(whole["ids"], [3, 5, 7])

    def test_default_counts(self):
        labels = """
            def collate(self, samples):
                return {"labels": torch.tensor([[1, -100, 2], [-100, -100, 3]])}
        """
        role, _ = self.role(self.write(labels))
        self.assertEqual(role.collate("train", [0, 1], 1)[0]["counts"], [3])
        role, _ = self.role(self.write(labels.replace("3]]", "3]]).float(")))
        self.assertEqual(role.collate("train", [0, 1], 1)[0]["counts"], [2])

    def test_counts_by_term(self):
        terms = "def terms(self):\n    return {'a': 1.0, 'b': 0.5}\n"
        role, (task, _) = self.role(self.write(terms + "def counts(self, batch):\n    return {'b': torch.tensor(4), 'a': numpy.int64(2)}\n"))
        self.assertEqual(task["terms"], [{"name": "a", "weight": 1.0}, {"name": "b", "weight": 0.5}])
        self.assertEqual(role.collate("train", [0], 1)[0]["counts"], [2, 4])
        for counts, text in [("3", "several loss terms: return a dict with a, b"), ("{'a': 1}", "counts of a, but the loss terms are a, b"), ("{'a': 1, 'b': 0.5}", "term 'b' is 0.5: expected an integer"),
                             ("{'a': 1, 'b': -1}", "is -1: expected"), ("{'a': 1, 'b': None}", "is None: expected"), ("{'a': True, 'b': 1}", "is True: expected")]:
            role, _ = self.role(self.write(terms + f"def counts(self, batch):\n    return {counts}\n"))
            self.assert_refused(r"my_task.py:\d+, in counts: .*" + text, lambda: role.collate("train", [0], 1))

    def test_metrics(self):
        role, _ = self.role(LINEAR)
        ask = lambda **sums: [(metric["name"], floats([metric["value"]])[0], metric["better"]) for metric in role.metrics(sums)["metrics"]]
        self.assertEqual(ask(samples=4, counts=[8], losses=[float_bits(2.0)], scores=[float_bits(3.0)]), [("accuracy", 0.75, "higher"), ("nll", 0.25, "lower")])
        for empty in ([0], []):
            self.assertEqual(ask(samples=0, counts=empty, losses=empty, scores=empty), [("accuracy", 0.0, "higher"), ("nll", 0.0, "lower")])


class Errors(WithFiles):
    def test_exceptions_name_file_and_line(self):
        read = "def dataset(self, split):\n    class Data(list):\n        def __getitem__(self, i):\n            {body}\n    return Data([1] * 9)\n"
        for body, text in [("raise ValueError('broken image')", "in __getitem__: ValueError: broken image"), ("return open('/nowhere/x')", "in __getitem__: FileNotFoundError: .*/nowhere/x"),
                           ("import json; return json.loads('{')", "in __getitem__: JSONDecodeError")]:
            self.assert_refused(r"^my_task.py:14, " + text, lambda: self.describe(read.format(body=body)), "data")
        for more, text, kind in [("def model(self):\n    return 1 / 0\n", r"my_task.py:12, in model: ZeroDivisionError", "task"), ("def model(self):\n    return 3\n", "must return a torch.nn.Module, not int", "task"),
                                 ("def __init__(self, config):\n    self.x = config['size']\n", "in __init__: KeyError: 'size'", "task"), ("import not_there\n", "my_task.py:11, in Task: ModuleNotFoundError", "task"),
                                 ("def f(:\n", r"my_task.py:11: SyntaxError", "task"), ("raise SystemExit(3)\n", r"sys.exit\(3\)", "task"), ("hetseq.run(hetseq.Task, 'x')\n", "RuntimeError: hetseq.run was called.*__main__", "task")]:
            os.environ["HETSEQ_ENGINE"] = "1"
            self.addCleanup(os.environ.pop, "HETSEQ_ENGINE", None)
            self.assert_refused(text, lambda: self.describe(more), kind)

    def test_the_full_trace_goes_to_stderr(self):
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr), self.assertRaises(EngineError):
            self.describe("def model(self):\n    return 1 / 0\n")
        self.assertIn("Traceback", stderr.getvalue())

    def test_datasets_that_cannot_be_used(self):
        for dataset, text in [("iter([1])", "without __len__ or __getitem__.*map-style"), ("None", r"dataset\(\"train\"\) returned None")]:
            kind = "task" if dataset == "None" else "data"
            self.assert_refused(text, lambda: self.describe(f"def dataset(self, split):\n    return {dataset}\n"), kind)
        lengths = "def dataset(self, split):\n    class Data(list):\n        def lengths(self):\n            return {}\n    return Data([1] * 3)\n"
        for value, text in [("[1, 2]", "must be 3 integers"), ("[1.5, 2, 3]", "must be 3 integers"), ("[1, 0, 3]", "from 1 to")]:
            self.assert_refused(text, lambda: self.describe(lengths.format(value)), "data")

    def test_a_dataset_that_shrinks(self):
        role, _ = self.role(self.write("data = [torch.ones(2)] * 10\ndef dataset(self, split):\n    return self.data\n"))
        self.assert_refused(r"my_task.py:12, in dataset: dataset\('train'\) has 10 samples, but had at least 13 ", lambda: role.collate("train", [12], 1), "data")
        del role.loaded.task.data[5:]
        self.assert_refused(r"dataset\('train'\) has 5 samples, but had 10 when the run started", lambda: role.collate("train", [1], 1), "data")

    def test_samples_that_do_not_collate(self):
        role, _ = self.role(self.write("def dataset(self, split):\n    return [torch.ones(2 + i) for i in range(10)]\n"))
        self.assert_refused("collate: RuntimeError: .*stack expects each tensor to be equal size", lambda: role.collate("train", [0, 1], 1), "data")

    def test_other_tasks_and_requests(self):
        self.assert_refused("task `python` only", lambda: DataRole({"seed": 1}).open({"task": "images", "config": {}}))
        self.assert_refused("does not know the request 'dance'", lambda: DataRole({"seed": 1}).handle({"do": "dance"}, []))


if __name__ == "__main__":
    unittest.main()
