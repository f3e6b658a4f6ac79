"""Pages on which letters lie on each other, and tables that touch or leave the page, are refused."""

from pathlib import Path

import pytest
import typst

from paper import layout

PAGE = "#set page(width: 300pt, height: 200pt, margin: 20pt)\n#set text(size: 8pt)\n"


def drawn(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "a.typ").write_text(PAGE + text, encoding="utf-8")
    pages = typst.compile(str(tmp_path / "a.typ"), format="svg", ignore_system_fonts=True)
    return [page.decode() for page in (pages if isinstance(pages, list) else [pages])]


SQUEEZED = (
    "#v(140pt)\n#block(height: 10pt, table(columns: 2, rows: (1fr,) * 4, inset: 0pt, ..(range(8).map(n => [row #n]))))"
)


@pytest.mark.parametrize(
    "text",
    [
        "#place(top)[a word] #place(top, dx: 2pt)[another]",
        "#rotate(90deg)[turned] #place(top)[words] #place(top)[words]",
        SQUEEZED,
    ],
)
def test_words_that_lie_on_each_other_are_found_on_their_page(tmp_path: Path, text: str) -> None:
    (said,) = layout.overlaps(drawn(tmp_path, f"One page.\n#pagebreak()\n{text}"))
    assert said.startswith("page 2: ")


def test_prose_formulas_and_tables_do_not_overlap(tmp_path: Path) -> None:
    text = (
        "_Afflicted_ fluffy *fjord* a#super[12]b $sum_(i=1)^n hat(x)_i^2 / sqrt(1 + epsilon) arrow.r integral_0^1 f'$ "
    )
    assert (
        list(layout.overlaps(drawn(tmp_path, text * 9 + "#table(columns: 2, inset: 1pt, [fg], [gj], [y], [T])"))) == []
    )


def edge(name: str, y: float, page: str = "1", *, wide: bool = False, left: bool = True) -> dict:
    return {"name": name, "page": page, "y": y, "wide": wide, "left": left}


def test_a_table_that_touches_the_next_is_refused() -> None:
    uses = {"tops": [edge("a", 50), edge("b", 120)], "bottoms": [edge("a", 115), edge("b", 200)]}
    (said,) = layout.touching(uses)
    assert said.startswith("page 1: b begins 5.0 points below the end of a;")
    assert list(layout.touching({**uses, "bottoms": [edge("a", 105), edge("b", 200)]})) == []


def test_tables_of_different_columns_do_not_touch_and_a_wide_one_touches_both() -> None:
    tops, bottoms = [edge("a", 50), edge("b", 120, left=False)], [edge("a", 115), edge("b", 200, left=False)]
    assert list(layout.touching({"tops": tops, "bottoms": bottoms})) == []
    tops, bottoms = [*tops, edge("c", 118, wide=True)], [*bottoms, edge("c", 119, wide=True)]
    assert len(list(layout.touching({"tops": tops, "bottoms": bottoms}))) == 2


def test_a_table_that_leaves_the_page_at_its_end_is_refused() -> None:
    (said,) = layout.touching({"tops": [edge("a", 700)], "bottoms": [edge("a", 760)]})
    assert said == "page 1: a ends 21 points below the text; place it elsewhere"
