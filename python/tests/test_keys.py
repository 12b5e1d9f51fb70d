"""Keys against numbers recorded from the Rust crate `hetseq-random`."""
import unittest

import numpy as np

import fake_host  # noqa: F401: sets the path
from hetseq import keys


class Keys(unittest.TestCase):
    def test_a_key_gives_the_bits_recorded_from_rust(self):
        key = keys.index(keys.name(keys.root(17), "dropout"), 3)
        self.assertEqual(keys.bits(key, [0, 1, 2]).tolist(), [3017216939, 2728134285, 3269587725])

    def test_arrays_of_keys_are_the_keys_one_by_one(self):
        root, samples, sites = keys.root(2**64 - 1), [0, 5, 2**32 - 1], ["", "a", "layers.0.dropout", "über#2"]
        by_sample = keys.sample_keys(root, samples)
        self.assertEqual(by_sample.tolist(), [keys.index(root, sample) for sample in samples])
        expected = [[keys.name(int(key), site) for key in by_sample] for site in sites]
        self.assertEqual(keys.site_keys(by_sample, sites).tolist(), expected)

    def test_bits_do_not_change_their_argument(self):
        elements = np.arange(5, dtype=np.uint32)
        keys.bits(3, elements)
        self.assertEqual(elements.tolist(), [0, 1, 2, 3, 4])


if __name__ == "__main__":
    unittest.main()
