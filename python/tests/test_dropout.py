"""Keyed dropout: the bits of the protocol, the same for every split, also when recomputed."""
import unittest

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fake_host  # noqa: F401: sets the path
from hetseq import keys, sample_context
from hetseq.dropout import Dropout, keep_mask, key_dropout, mask_on_device, name_sites, threshold, unkeyed_dropout
from hetseq.errors import EngineError

CPU = torch.device("cpu")


def reference(samples, elements, rate, site, update_key):
    """The mask as the protocol defines it."""
    limit = int(float(np.float32(rate)) * 2**32)
    return np.array([keys.bits(keys.name(keys.index(update_key, sample), site), np.arange(elements)) >= limit for sample in samples])


def model_with(*modules):
    model = nn.Sequential(*modules)
    name_sites(model)
    return model


class Masks(unittest.TestCase):
    def tearDown(self):
        sample_context.end()

    def test_masks_are_those_of_the_protocol(self):
        sample_context.begin([4, 1, 77], 99)
        model = model_with(nn.Identity(), Dropout(0.3))
        out = model(torch.ones(3, 40, 1000)).view(3, -1).numpy()
        expected = reference([4, 1, 77], 40_000, 0.3, "1", 99)
        np.testing.assert_array_equal(out != 0, expected)
        np.testing.assert_array_equal(out[expected], np.float32(1) / (np.float32(1) - np.float32(0.3)))

    def test_operations_on_tensors_give_the_same_masks(self):
        site = keys.site_keys(keys.sample_keys(5, range(6)), ["x"])[0]
        for rate in (0.0001, 0.1, 0.5, 0.9):
            self.assertTrue(torch.equal(keep_mask(site, 70_001, rate, CPU), mask_on_device(site, 70_001, threshold(rate), CPU)))

    def test_a_sample_keeps_its_mask_in_every_micro_batch(self):
        model, x = model_with(Dropout(0.5)), torch.randn(6, 33)
        sample_context.begin(range(10, 16), 3)
        whole = model(x)
        sample_context.begin([14, 11], 3)
        self.assertTrue(torch.equal(model(x[[4, 1]]), whole[[4, 1]]))
        sample_context.begin([14, 11], 4)
        self.assertFalse(torch.equal(model(x[[4, 1]]), whole[[4, 1]]))

    def test_the_gradient_has_the_mask_of_the_output(self):
        model, x = model_with(Dropout(0.5)), torch.ones(4, 50, requires_grad=True)
        sample_context.begin(range(4), 3)
        out = model(x)
        out.sum().backward()
        self.assertTrue(torch.equal(x.grad, out.detach()))

    def test_recomputed_parts_draw_the_same_mask(self):
        for reentrant in (False, True):
            model = model_with(nn.Linear(20, 20), Dropout(0.5), nn.Linear(20, 20), Dropout(0.2))
            x = torch.randn(3, 20)
            gradients = []
            for run in (model, lambda x: checkpoint(model, x, use_reentrant=reentrant)):
                sample_context.begin(range(3), 8)
                model.zero_grad()
                run(x.clone().requires_grad_()).square().sum().backward()
                gradients.append(model[0].weight.grad.clone())
            self.assertTrue(torch.equal(*gradients))

    def test_each_call_draws_another_mask(self):
        model = model_with(Dropout(0.5))
        for _ in range(2):
            sample_context.begin([1], 8)
            first, second = model(torch.ones(1, 64)), model(torch.ones(1, 64))
            self.assertFalse(torch.equal(first, second))
            np.testing.assert_array_equal(second[0].numpy() != 0, reference([1], 64, 0.5, "0#2", 8)[0])

    def test_calls_that_cannot_be_told_apart_when_recomputed_are_refused(self):
        model = model_with(Dropout(0.5))
        sample_context.begin([1], 8)
        x = torch.ones(1, 4, requires_grad=True)
        out = checkpoint(lambda x: model(model(x)) * x, x, use_reentrant=False)
        with self.assertRaisesRegex(EngineError, "'0' is called 2 times"):
            out.sum().backward()

    def test_a_wrong_first_dimension_is_refused(self):
        sample_context.begin([1, 2], 8)
        with self.assertRaisesRegex(EngineError, r"Dropout '0' got a tensor of shape \[3, 4\] for 2 samples"):
            model_with(Dropout(0.5))(torch.ones(3, 4))

    def test_rates_of_0_and_1_and_evaluation(self):
        sample_context.begin([1, 2], 8)
        x = torch.ones(2, 5)
        self.assertTrue(torch.equal(model_with(Dropout(0.0))(x), x))
        self.assertEqual(model_with(Dropout(1.0))(x).abs().sum(), 0)
        self.assertTrue(torch.equal(model_with(Dropout(0.5)).eval()(x), x))
        with self.assertRaises(ValueError):
            Dropout(1.5)

    def test_bf16_and_other_strides(self):
        model, x = model_with(Dropout(0.5)), torch.randn(2, 6, 4)
        sample_context.begin([1, 2], 8)
        expected = model(x)
        sample_context.begin([1, 2], 8)
        self.assertTrue(torch.equal(model(x.transpose(1, 2).contiguous().transpose(1, 2)), expected))
        sample_context.begin([1, 2], 8)
        self.assertEqual(model(x.bfloat16()).dtype, torch.bfloat16)

    def test_outside_of_hetseq_it_is_ordinary_dropout(self):
        model = model_with(Dropout(0.5))
        torch.manual_seed(0)
        expected = nn.functional.dropout(torch.ones(3, 9), 0.5)
        torch.manual_seed(0)
        self.assertTrue(torch.equal(model(torch.ones(3, 9)), expected))


class Replacing(unittest.TestCase):
    def test_every_dropout_module_is_replaced(self):
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
        model = nn.ModuleDict({"layer": layer, "last": nn.Dropout(0.3), "kept": nn.Dropout(0.2), "two": nn.Dropout2d(0.4)})
        self.assertIs(key_dropout(model, skip=["kept"]), model)
        self.assertIsInstance(model["layer"].dropout1, Dropout)
        self.assertEqual(model["last"].p, 0.3)
        self.assertEqual(unkeyed_dropout(model), ["layer.self_attn", "kept", "two"])


if __name__ == "__main__":
    unittest.main()
