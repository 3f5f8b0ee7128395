"""The pages of docs/ against the code: what they name is there."""

import ast
import re
import runpy

import pytest
from test_rooms import ARROWS, PACKAGE, ROOT

DOCS = ROOT / "docs"
ARCHITECTURE, GLOSSARY = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("architecture.md", "glossary.md")
)
CODE = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")).lower()


def test_every_room_has_its_line_and_no_other_has() -> None:
    lines = re.findall(r"^\| `(\w+)` \| \S", ARCHITECTURE, re.MULTILINE)
    assert sorted(lines) == sorted(room for room in ARROWS if room)
    places = {room: place for place, room in enumerate(lines)}
    upward = [
        (room, end) for room, ends in ARROWS.items() if room for end in ends.split() if places[end] > places[room]
    ]
    assert upward == []  # a room stands above those that it may import


@pytest.mark.parametrize("place", sorted(set(re.findall(r"`([a-z_]+/[\w/]*(?:\.py(?:::\w+)?)?)`", ARCHITECTURE))))
def test_what_is_named_is_there(place: str) -> None:
    if place in ("dorff/", "tests/test_rooms.py"):
        assert (ROOT / place).exists()
        return
    file, _, name = place.partition("::")
    assert (PACKAGE / file).exists()
    if name:
        tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_the_glossary_is_short_in_order_and_of_words_that_the_code_uses() -> None:
    words = re.findall(r"^\| (\w[\w-]*)[^|]* \| \S", GLOSSARY, re.MULTILINE)[1:]  # the first is the table's head
    assert 30 < len(words) <= 40 and words == sorted(words, key=str.lower)
    assert [word for word in words if not re.search(rf"\b{word.lower().rstrip('s')}", CODE)] == []


def slugs(text: str) -> set[str]:
    """The anchors of a page's headings."""
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *sorted(f"docs/{page.name}" for page in DOCS.glob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    lost = []
    for link in links:
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        if not target.exists() or (anchor and anchor not in slugs(target.read_text(encoding="utf-8"))):
            lost.append(link)
    assert lost == []


def test_the_reference_of_jobs_is_what_the_reader_knows() -> None:
    page = runpy.run_path(str(DOCS / "job.py"))["page"]
    assert (DOCS / "job.md").read_text(encoding="utf-8") == page(), "run: python docs/job.py"
