"""The covariance operator of a layer of your own network: what training amplifies there, and what it leaves alone.

python examples/operator_of_your_network.py
"""

import argparse

import torch

import sslbook


def main(count: int = 128) -> sslbook.CovarianceOperator:
    torch.manual_seed(0)
    net = torch.nn.Sequential(  # any network that treats its samples one by one
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 16, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(144, 10),
    ).double()
    images = sslbook.load_dataset("digits", "train").pixels[:count].double() / 255
    views = sslbook.shifts(images, radius=1)  # (count, 9, 1, 8, 8): each image, and its eight neighbours by a pixel

    kept = sslbook.covariance_operator(net, "2", views)  # the layer by its name in the network, or the layer itself
    lost = sslbook.intra_operator(net, "2", views)
    found = kept.top_eigenpairs(5)

    print(f"between images {kept.trace():.3g}, within augmentations {lost.trace():.3g}")
    for value, filters in found:
        spread = torch.sum(filters * lost.apply(filters))
        print(f"a direction that is amplified at rate {value:.3g} varies within augmentations by {spread:.3g}")
    return kept


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=128, help="images")
    main(**vars(parser.parse_args()))
