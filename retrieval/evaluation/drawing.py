"""A drawn chart and its colours: saved as PNG or SVG, or put into an HTML page.

Every colour has a name. A file shows the light ones on white; in a page each is a CSS variable, so that one SVG reads
in light and dark. Text stays text: a browser brings the letters, whatever fonts are installed here. The colours of
series are apart for the colour-blind, after Okabe and Ito 2008, "Color Universal Design".
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval.errors import RetrError, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIGHT = {
    "ink": "#1c2026",
    "muted": "#5f6875",
    "line": "#c9ced6",
    "series-1": "#0072b2",
    "series-2": "#d55e00",
    "series-3": "#008a65",
    "series-4": "#a8548a",
    "series-5": "#a67200",
    "series-6": "#6b7280",
}
DARK = {
    "ink": "#e7eaef",
    "muted": "#a2abb8",
    "line": "#3d444f",
    "series-1": "#56b4e9",
    "series-2": "#ff8b4d",
    "series-3": "#35c79a",
    "series-4": "#dc90c1",
    "series-5": "#e6b94c",
    "series-6": "#98a1ae",
}
"""The same names on a dark ground."""
SUFFIXES = (".png", ".svg")
_DPI = 160
_HAN_FONTS = (
    "Noto Sans CJK SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "PingFang SC",
    "Microsoft YaHei",
    "SimHei",
)


@dataclass(frozen=True)
class Chart:
    """A drawn chart."""

    title: str
    _figure: Figure

    def save(self, path: Path) -> str:
        """Write a PNG or an SVG file, by the suffix.

        Returns
        -------
        Letters that no font installed here has, which a PNG shows as boxes; empty for an SVG.

        Raises
        ------
        UsageError
            Another suffix.
        OSError
            The file cannot be written.
        """
        check_chart_file(path)
        content, missing = _rendered(self._figure, path.suffix.lower().removeprefix("."))
        path.write_bytes(content)
        return missing

    def svg(self, name: str) -> str:
        """An `<svg>` element for an HTML page that defines the CSS variables of LIGHT and DARK.

        Parameters
        ----------
        name : of this chart, once a page; every id begins with it.
        """
        text = _rendered(self._figure, "svg", ground="none")[0].decode("utf-8")
        # Without what a page has no use for: metadata, and a rule of style that would hold for all of it.
        text = re.sub(
            r"<metadata>.*?</metadata>\s*|<style.*?</style>\s*", "", text[text.index("<svg") :], flags=re.DOTALL
        )
        head, rest = text.split(">", 1)
        box = re.search(r'viewBox="[^"]*"', head)
        label = html.escape(self.title, quote=True)
        rest = rest.replace("xlink:href=", "href=")
        rest = re.sub(r'\bid="', f'id="{name}-', rest)
        rest = re.sub(r'(url\(|href=")#', rf"\g<1>#{name}-", rest)
        for variable, colour in LIGHT.items():
            rest = rest.replace(colour, f"var(--{variable}, {colour})")
        rest = re.sub(r"font-family: [^;\"]*", "font-family: var(--font, sans-serif)", rest)
        return f'<svg {box[0] if box else ""} role="img" aria-label="{label}" stroke-linejoin="round">{rest}'.strip()


def check_chart_file(path: Path) -> None:
    """What can be known of a chart's file before anything is drawn.

    Raises
    ------
    UsageError
        The suffix is neither .png nor .svg, or there is no such folder.
    RetrError
        matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"chart {str(path)!r}: expected a name that ends with {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise UsageError(f"chart {str(path)!r}: there is no folder {str(path.parent)!r}; make it first")
    _matplotlib()


@contextmanager
def new_axes(title: str, width: float = 7.2, height: float = 4.2) -> Iterator[tuple[Figure, Axes]]:
    """One pair of axes (sizes in inches), drawn in our colours; nothing of matplotlib's own state is left changed."""
    _matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with _settings():
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_title(title, loc="left", fontsize=11)
        yield figure, axes
        fix_layout(figure)


def fix_layout(figure: Figure) -> None:
    """Give all their places, once: another look, for a file of another kind, would move them by a hair."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


@contextmanager
def _settings() -> Iterator[list[warnings.WarningMessage]]:
    import matplotlib

    ink, muted, line = LIGHT["ink"], LIGHT["muted"], LIGHT["line"]
    settings: Any = {
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": muted,
        "xtick.color": muted,
        "ytick.color": muted,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "grid.color": line,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "font.family": ["sans-serif"],
        "font.size": 10,
        "text.parse_math": False,
        "axes.unicode_minus": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "retr",
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def _rendered(figure: Figure, form: str, ground: str = "white") -> tuple[bytes, str]:
    """The file's bytes, and the letters that no font has."""
    from matplotlib import font_manager
    from matplotlib.text import Text

    found = set(font_manager.get_font_names()) if form == "png" else set()
    family = ["DejaVu Sans", *(name for name in _HAN_FONTS if name in found)] if form == "png" else ["sans-serif"]
    options: dict[str, Any] = (
        {"dpi": _DPI, "metadata": {"Software": "retr"}}
        if form == "png"
        else {"metadata": {"Date": None, "Creator": "retr"}}
    )
    out = io.BytesIO()
    with _settings() as caught:
        for text in figure.findobj(Text):
            text.set_fontfamily(family)
        figure.savefig(out, format=form, facecolor=ground, **options)
    glyphs = (re.match(r"Glyph (\d+) ", str(warning.message)) for warning in caught)
    letters = "".join(dict.fromkeys(chr(int(match[1])) for match in glyphs if match))
    return out.getvalue(), letters if form == "png" else ""


def _matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise RetrError(
            f"charts need the package matplotlib, which is not installed ({error}): pip install 'retr[charts]'"
        ) from None
