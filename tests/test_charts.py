"""Charts and pages: right by their content, safe in any page, the same every time."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from retrieval.errors import RetrError, UsageError
from retrieval.evaluation import charts
from retrieval.evaluation.charts import (
    Chart,
    Point,
    Series,
    check_chart_file,
    grouped_bars,
    heat_map,
    line_chart,
    pareto_chart,
    pareto_front,
)
from retrieval.evaluation.drawing import DARK, LIGHT
from retrieval.evaluation.page import Code, Section, Table, html_page

pytest.importorskip("matplotlib")


def _lines() -> Chart:
    lines = [Series("whiten", [64, 128, 256], [0.7, 0.71, 0.69]), Series("旋转 <b>", [64, 256], [0.7, 0.73])]
    return line_chart(lines, title="词 & dims", x_label="dimensions", y_label="rho", log_x=True, ticks=[64, 128, 256])


def _heat() -> Chart:
    values = [[0.5, None], [0.25, float("nan")]]
    return heat_map(
        values, ["a", "b"], ["x", "y"], title="heat", form=".3f", marked=(0, 0), missing={(0, 1): "rank 383"}
    )


def _bars() -> Chart:
    return grouped_bars(["cls", "avg"], {"ours": [0.31, None], "article": [0.33, 0.6]}, title="bars", x_label="rho")


def _pareto() -> Chart:
    points = [Point("flat", 9.0, 1.0, "exact"), Point("ivf", 0.2, 0.95, "ivf"), Point("poor", 0.4, 0.5, "ivf")]
    return pareto_chart(points, title="pareto", x_label="ms", y_label="recall@10", log_x=True)


DRAWN = [_lines, _heat, _bars, _pareto]


def _texts(svg: str) -> list[str]:
    return [text for element in ET.fromstring(svg).iter() if element.tag.endswith("text") and (text := element.text)]


@pytest.mark.parametrize("draw", DRAWN)
def test_inline_svg_is_xml_with_named_colours_and_own_ids(draw: Callable[[], Chart]) -> None:
    svg = draw().svg("c7")
    root = ET.fromstring(svg)
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids)) > 5
    assert all(name.startswith("c7-") for name in ids)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg))
    assert used <= set(ids)
    outside = re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)", "", svg)
    assert (
        re.findall(r"#[0-9a-f]{6}\b(?!\d)|: (?:white|black)\b(?!-)", re.sub(r'id="[^"]*"|#c7-[^")]*', "", outside))
        == []
    )
    assert set(re.findall(r"var\(--([a-z0-9-]+)", svg)) - {"font"} <= set(LIGHT)
    assert "http" not in svg
    assert "<style" not in svg


@pytest.mark.parametrize("draw", DRAWN)
def test_a_chart_is_the_same_every_time(draw: Callable[[], Chart], tmp_path: Path) -> None:
    first, second = draw(), draw()
    assert first.svg("a") == second.svg("a") == second.svg("a")
    for suffix in ("svg", "png"):
        first.save(tmp_path / f"1.{suffix}")
        second.save(tmp_path / f"2.{suffix}")
        assert (tmp_path / f"1.{suffix}").read_bytes() == (tmp_path / f"2.{suffix}").read_bytes()


def test_charts_show_what_they_were_given_as_text() -> None:
    assert {"词 & dims", "whiten", "旋转 <b>", "64", "256", "dimensions", "rho"} <= set(_texts(_lines().svg("a")))
    assert {"0.500", "0.250", "rank 383", "–", "a", "b", "x", "y", "heat"} <= set(_texts(_heat().svg("a")))
    assert {"0.31", "0.33", "0.60", "cls", "avg", "ours", "article"} <= set(_texts(_bars().svg("a")))
    assert {"flat", "ivf", "poor", "exact", "recall@10"} <= set(_texts(_pareto().svg("a")))


def test_the_larger_the_value_the_more_colour() -> None:
    svg = heat_map([[1.0, 2.0, 3.0]], ["a"], ["x", "y", "z"], title="t").svg("a")
    shares = [float(share) for share in re.findall(r"series-1, #0072b2\); opacity: ([0-9.]+)", svg)]
    assert len(shares) == 3
    assert shares == sorted(set(shares))


def test_files_are_png_or_svg_by_their_suffix(tmp_path: Path) -> None:
    _lines().save(tmp_path / "a.PNG")
    assert _lines().save(tmp_path / "a.svg") == ""
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")
    assert ET.parse(tmp_path / "a.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    for name, match in (("a.pdf", r"a\.pdf.*\.png or \.svg"), ("a", r"\.png or \.svg"), ("none/a.svg", "no folder")):
        with pytest.raises(UsageError, match=match):
            _lines().save(tmp_path / name)


def test_a_png_tells_of_letters_that_no_font_has(tmp_path: Path) -> None:
    chart = line_chart([Series("a", [1, 2], [1, 2])], title="\U00012345", x_label="x", y_label="y")
    assert chart.save(tmp_path / "a.png") == "\U00012345"
    assert chart.save(tmp_path / "a.svg") == ""


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    _heat().svg("a")
    assert dict(matplotlib.rcParams) == before
    code = (
        "import sys; import retrieval.evaluation.charts, retrieval.evaluation.page; print('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
    drawn = (
        "import sys; from retrieval.evaluation.charts import heat_map;"
        "heat_map([[1]], ['a'], ['b'], title='t').svg('a'); print('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", drawn], capture_output=True, text=True).stdout == "False\n"


def test_without_matplotlib_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for call in (_heat, _lines, lambda: check_chart_file(tmp_path / "a.svg")):
        with pytest.raises(RetrError, match=r"pip install 'retr\[charts\]'"):
            call()


def test_pareto_front_holds_what_no_other_beats() -> None:
    # (1, .5) and (3, .9) and (4, 1): (2, .5) costs more for as much, (3, .8) gives less for as much, (9, .2) both.
    values = [(2, 0.5), (4, 1.0), (1, 0.5), (3, 0.8), (3, 0.9), (9, 0.2)]
    assert pareto_front([Point("", x, y) for x, y in values]) == [2, 4, 1]
    assert pareto_front([]) == []


def test_empty_charts_are_drawn() -> None:
    assert "empty" in _texts(pareto_chart([], title="empty", x_label="x", y_label="y").svg("a"))
    assert "empty" in _texts(heat_map([[None]], ["a"], ["b"], title="empty").svg("a"))


def _contrast(one: str, other: str) -> float:
    """WCAG 2.2: (L1 + .05) / (L2 + .05) of relative luminances."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("colours", "ground"), [(LIGHT, "#ffffff"), (DARK, "#14171c")])
def test_colours_can_be_told_from_their_ground(colours: dict[str, str], ground: str) -> None:
    assert colours.keys() == LIGHT.keys()
    for name, colour in colours.items():
        if name != "line":  # WCAG: 4.5 for text, 3 for graphics
            assert _contrast(colour, ground) >= (4.5 if name in ("ink", "muted") else 3), name


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_page_is_whole_offline_and_escaped() -> None:
    evil = "<script>alert('1')</script> & \"词\""
    table = Table(["name", "rho"], [[evil, "72.70 [71, 73]"], ["b", "–"]], caption=evil, strong=frozenset({1}))
    text = html_page(evil, [Section(evil, [evil, table, Code(evil), _heat(), _heat()]), Section("", ["last"])])
    page = _Page(text)
    assert "http" not in text
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "img", "iframe"})
    assert page.words.count(evil) == 7  # title, h1, h2, p, caption, a cell, code
    assert "prefers-color-scheme: dark" in text
    assert all(f"--{name}: {colour};" in text for colours in (LIGHT, DARK) for name, colour in colours.items())
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    cells = [(tag, attributes.get("class")) for tag, attributes in page.tags if tag in ("th", "td")]
    assert cells == [("th", None), ("th", "number"), ("td", None), ("td", "number"), ("td", None), ("td", "number")]


def test_a_row_that_does_not_fit_its_header_is_refused() -> None:
    with pytest.raises(ValueError):
        html_page("t", [Section("", [Table(["a", "b"], [["1"]])])])


def test_every_colour_that_is_drawn_has_a_name() -> None:
    assert [LIGHT[f"series-{number}"] for number in range(1, 7)] == charts._SERIES
