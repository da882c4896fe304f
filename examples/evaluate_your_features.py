"""What features are worth, whatever network they come from: nearest neighbours, a linear classifier, effective rank.

python examples/evaluate_your_features.py features.npz     # train_features (N, F), train_labels (N,), test_...
python examples/evaluate_your_features.py                  # without a file, the pixels of handwritten digits
"""

import argparse

import numpy as np
import torch

import sslbook


def digits() -> dict[str, torch.Tensor]:
    """Pixels as features: what a network has to beat."""
    train, test = sslbook.load_dataset("digits", "train"), sslbook.load_dataset("digits", "test")
    return {
        "train_features": train.pixels.flatten(1) / 255,
        "train_labels": train.labels,
        "test_features": test.pixels.flatten(1) / 255,
        "test_labels": test.labels,
    }


def main(file: str | None = None, epochs: int = 50) -> tuple[float, float]:
    parts = digits() if file is None else {name: torch.from_numpy(part) for name, part in np.load(file).items()}
    neighbours = sslbook.knn_accuracy(**parts, k=min(20, len(parts["train_features"])))
    classifier = sslbook.linear_probe(**parts, epochs=epochs)
    rank = sslbook.effective_rank(parts["test_features"])
    print(f"nearest neighbours {neighbours:.1%}, linear classifier {classifier.final:.1%}, effective rank {rank:.1f}")
    return neighbours, classifier.final


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="a file of numpy.savez")
    parser.add_argument("--epochs", type=int, default=50, help="of the linear classifier")
    main(**vars(parser.parse_args()))
