"""Draw the README's picture: digits, what their views share, what tells them apart, and what a neuron learns.

python tools/make_cover.py            writes chapters/images/cover.png
"""

from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

from sslbook import images
from sslbook.book import plots
from sslbook.chapters.covariance import step

TARGET = Path(__file__).resolve().parents[1] / "chapters" / "images" / "cover.png"


def main() -> None:
    """Draw and write the picture."""
    plots.style()
    data = images.digits(512, seed=0)
    chosen = [int((data.labels == d).nonzero()[3]) for d in range(10)]
    shared = images.shifts(data.pixels, 1).mean(1)
    _, modes, _ = step.surviving_modes(step.digits_scene(512, 1), 10)
    rows = {
        "ten images": data.pixels[chosen],
        "what each image's views share": shared[chosen],
        "what tells them apart": (shared - shared.mean(0))[chosen],
        "what a neuron can learn: the operator's leading modes": modes,
    }
    fig = plots.strips({title: pictures[:, 0] for title, pictures in rows.items()})
    TARGET.parent.mkdir(exist_ok=True)
    fig.savefig(TARGET, dpi=160)
    print(f"Written: {TARGET}")


if __name__ == "__main__":
    main()
