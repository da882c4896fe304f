"""Draw the README's picture and the one beside a posted link: digits, what their views share, what tells them apart.

python tools/make_cover.py            writes chapters/images/cover.png and bookbuild/assets/static/sslbook/social.png
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt

from bookbuild.sphinx_ext import ASSETS
from sslchapters import enumerated, plots
from sslchapters.covariance import runs

TARGET = Path(__file__).resolve().parents[1] / "chapters" / "images" / "cover.png"
SOCIAL = ASSETS / "static/sslbook/social.png"


def main() -> None:
    """Draw and write the picture."""
    plots.style()
    data = enumerated.digits(512, seed=0)
    chosen = [int((data.labels == d).nonzero()[3]) for d in range(10)]
    shared = enumerated.shifts(data.pixels, 1).mean(1)
    _, modes, _ = runs.surviving_modes(runs.digits_scene(512, 1), 10)
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
    words = ("images", "what their\nviews share", "what tells\nthem apart")
    _social({title: pictures[:8, 0] for title, pictures in zip(words, rows.values(), strict=False)})
    print(f"Written: {SOCIAL}")


def _social(rows: dict[str, Any]) -> None:
    """The title, and three rows of pictures below it, at the size that sites ask for."""
    fig = plt.figure(figsize=(12, 6.3), dpi=100, layout="none")
    fig.patch.set_facecolor("white")
    fig.text(0.05, 0.865, "What Survives Augmentation", size=44, weight="bold", color="#0a5f94")
    fig.text(0.05, 0.785, "An executable book on why self-supervised learning works", size=23, color="#333333")
    for row, (title, pictures) in enumerate(rows.items()):
        fig.text(0.05, 0.61 - 0.24 * row, title, size=19, va="center")
        for column, picture in enumerate(pictures):
            ax = fig.add_axes((0.29 + 0.086 * column, 0.535 - 0.24 * row, 0.08, 0.152))
            ax.imshow(picture, cmap="gray_r", interpolation="nearest")
            ax.set_axis_off()
    fig.savefig(SOCIAL, dpi=100)
    plt.close(fig)


if __name__ == "__main__":
    main()
