"""The pictures of the documents: `python -m reports.figures` writes `docs/figures/`.

`memory.svg` is drawn from a plan of `models/zoo/gpt.onnx`, made and verified here; `site.png` is
the first page of the built documents in Chromium (`--site`; playwright and a `chromium` on the path).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from planner import optimize
from planner.results import OptimizeResult
from reports.shared import MIB, ZOO, chromium, program

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "figures"
SAMPLE = ZOO / "gpt.onnx"
BUDGET = "60%"
WIDTH, HEIGHT, LEFT, TOP, GAP = 880, 300, 56, 46, 22
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #333 }
.title { font-weight: 600 } .small { font-size: 11px } .area { fill: #5b7fa6 } .after { fill: #4b8f6b }
.limit { stroke: #c0392b; stroke-width: 1.5; stroke-dasharray: 6 4 } .limit-text { fill: #c0392b }
.axis { stroke: #999; stroke-width: 1 } .back { fill: #fff }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } .limit { stroke: #ff7a6b } .limit-text { fill: #ff7a6b } .back { fill: #15181c }
}
""".strip()


def memory_picture(result: OptimizeResult) -> str:
    """Draw live bytes at every operation of a step, before and after, with the budget, on one scale."""
    views = (("As it is", "area", result.before), ("As planned", "after", result.after))
    top = max(max(view.timeline.live_bytes) for _, _, view in views) / MIB
    wide = (WIDTH - LEFT - 2 * GAP) / 2
    tall = HEIGHT - TOP - 40
    budget = result.plan.budget_bytes / MIB
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>Live bytes over a training step of {SAMPLE.stem}, before and after</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>',
    ]
    for value in range(0, int(top) + 1, 20):
        y = TOP + tall * (1 - value / top)
        lines.append(
            f'<text class="small" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value}</text>'
        )
    lines.append(f'<text class="small" x="{LEFT - 8}" y="{TOP - 8}" text-anchor="end">MiB</text>')
    for number, (title, style, view) in enumerate(views):
        x = LEFT + number * (wide + GAP)
        live = [count / MIB for count in view.timeline.live_bytes]
        lines += [
            f'<text class="title" x="{x:.1f}" y="20">{title}: a peak of {max(live):.1f} MiB</text>',
            f'<path class="{style}" d="{_area(live, x, wide, tall, top)}"/>',
            f'<line class="axis" x1="{x:.1f}" x2="{x + wide:.1f}" y1="{TOP + tall}" y2="{TOP + tall}"/>',
            f'<text class="small" x="{x:.1f}" y="{TOP + tall + 18}">{len(live):,} operations, in the '
            "order in which they run</text>",
        ]
    y = TOP + tall * (1 - budget / top)
    lines += [
        f'<line class="limit" x1="{LEFT}" x2="{LEFT + 2 * wide + GAP:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<text class="small limit-text" x="{LEFT + wide + GAP:.1f}" y="{y - 6:.1f}">'
        f"budget: {BUDGET} = {budget:.1f} MiB</text>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _area(live: list[float], x: float, wide: float, tall: float, top: float) -> str:
    """Return a path of steps, each as wide as one operation."""
    each = wide / len(live)
    points = [f"M{x:.1f} {TOP + tall:.1f}"]
    for step, value in enumerate(live):
        points += [f"V{TOP + tall * (1 - value / top):.1f}", f"H{x + (step + 1) * each:.1f}"]
    return "".join([*points, f"V{TOP + tall:.1f}Z"])


def planned(folder: Path) -> OptimizeResult:
    """Plan the sample by recompute and order, and verify it."""
    result = optimize(
        SAMPLE, budget=BUDGET, swap="none", calibrate=False, output=folder / "planned.onnx"
    )
    assert result.verification is not None and result.verification.passed
    return result


def site_picture(folder: Path) -> None:
    """Take a picture of the first page of the built documents."""
    build = ["-m", "sphinx", "-q", "-c", str(ROOT / "docs"), str(ROOT), str(folder / "site")]
    subprocess.run([sys.executable, *build], cwd=ROOT, check=True)
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1100, "height": 760})
        page.goto((folder / "site" / "docs" / "index.html").as_uri())
        page.wait_for_timeout(500)
        page.screenshot(path=FOLDER / "site.png")


def main() -> None:
    """Write the pictures."""
    parser = program("reports.figures", __doc__)
    parser.add_argument("--site", action="store_true", help="the picture of the built site alone")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="planner-figures-") as name:
        if arguments.site:
            site_picture(Path(name))
        else:
            text = memory_picture(planned(Path(name)))
            (FOLDER / "memory.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
