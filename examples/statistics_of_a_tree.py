"""The exact statistics of a latent tree, and of a ReLU network on it: every expectation is a finite sum, nothing is sampled.

python examples/statistics_of_a_tree.py --depth 4
"""

import argparse

import torch

import sslbook


def main(depth: int = 3, polarity: float = 0.8, width: int = 10) -> list[torch.Tensor]:
    # Binary variables that equal their parent with probability (1 + polarity)/2; two children each; one tree.
    edges = [torch.full((1, 2 ** (d + 1)), polarity, dtype=torch.float64) for d in range(depth)]
    tree = sslbook.symmetric_binary(edges)
    net = sslbook.initial_network([0], tree.branching, width)
    found = sslbook.latent_correlations(tree, net)  # of each unit with its latent variable, (1, nodes, width) a depth
    print(f"{tree.nodes[-1]} leaves, {2 ** tree.nodes[-1]:,} patterns of them")
    for d, units in enumerate(found):
        best = units.abs().amax(-1).mean()
        print(f"depth {d}: {tree.nodes[d]} variables, whose best of {width} random units correlates at {best:.3f}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--polarity", type=float, default=0.8)
    parser.add_argument("--width", type=int, default=10, help="units for each variable")
    main(**vars(parser.parse_args()))
