"""The speed table as a picture: how many times faster than the peer, a bar each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"decode": "#1f6f8b", "decode, keys shuffled": "#99c1de", "encode": "#e07a5f"}


def draw(rows: list[dict[str, Any]], path: Path, scenario: str = "tall20") -> None:
    """Bars for one scenario, grouped by work; a tick marks what was wanted."""
    chosen = [row for row in rows if row["scenario"] == scenario]
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(chosen) + 1.6), layout="constrained")
    for index, row in enumerate(reversed(chosen)):
        axes.barh(index, row["ratio"], color=COLOURS[row["work"]], height=0.72)
        axes.plot([row["target"]] * 2, [index - 0.36, index + 0.36], color="black", linewidth=1.5)
        axes.text(
            max(row["ratio"], row["target"]) + 0.4,
            index,
            f"{row['ratio']:.1f}×   {row['ours_us']:.2f} µs an event",
            va="center",
            fontsize=9,
        )
    axes.set_yticks(
        range(len(chosen)),
        [f"{row['work']}: {row['protocol']}" for row in reversed(chosen)],
        fontsize=9,
    )
    axes.set_xlim(0, max(row["ratio"] for row in chosen) * 1.25)
    axes.set_xlabel("times faster than the peer (orjson; fastavro for Avro decoding); | wanted")
    axes.set_title(f"Tidegate's wire layer, {scenario}: 20 columns, one core")
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
