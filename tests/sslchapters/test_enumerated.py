"""Enumerated augmentations: the digits as scikit-learn has them, and a scene of all their views."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

from sslchapters.enumerated import digits, scene, shifts


def test_digits_are_those_of_scikit_learn():
    data = digits()
    assert (data.name, len(data)) == ("digits", 1797)
    assert (data.pixels.dtype, data.labels.dtype) == (torch.float32, torch.int64)
    official = load_digits()
    np.testing.assert_array_equal(data.pixels[:, 0].numpy() * 16, official.images)
    np.testing.assert_array_equal(data.labels.numpy(), official.target)


def test_a_subset_is_reproducible_nested_and_without_repeats():
    small, large, other = digits(50), digits(200), digits(50, seed=1)
    assert torch.equal(small.pixels, large.pixels[:50])
    assert torch.equal(small.labels, large.labels[:50])
    assert not torch.equal(small.labels, other.labels)
    everything = digits(1797)
    assert torch.equal(everything.labels.bincount(), digits().labels.bincount())
    known = {image.numpy().tobytes(): label for image, label in zip(digits().pixels, digits().labels, strict=True)}
    assert [known[image.numpy().tobytes()] for image in large.pixels] == large.labels.tolist(), "permuted together"


def test_a_scene_is_centred_and_its_batches_are_different_views_of_different_images():
    whole = scene(digits(20), shifts)
    assert whole.views.shape == (20, 9, 1, 8, 8)
    assert torch.equal(whole.views[:, 0], whole.clean)
    assert float(whole.clean.mean(0).abs().max()) < 1e-6
    views, clean = whole.batch(20, torch.Generator().manual_seed(0))
    places = [(whole.views.flatten(0, 1) == view).flatten(1).all(1).nonzero()[0].item() for view in views.flatten(0, 1)]
    assert len({place // 9 for place in places}) == 20
    for image in range(20):
        one, two = places[2 * image : 2 * image + 2]
        assert one // 9 == two // 9
        assert torch.equal(whole.clean[one // 9], clean[image])
