"""Jobs below a root, key by key: what is refused, and what an operator's permission covers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from dorff.errors import InputError
from dorff.spec.part import HARMLESS, Part
from dorff.spec.trust import Declares, Guarded, Trust, check_scheme, check_word, leads_through, trusting
from dorff.storage.location import locate


class Item(Part):
    name: Annotated[str, Guarded("a secret")] = ""
    file: Path | None = None


class Closed(Part, Declares):
    port: int = 0


class Request(Part):
    """A job with keys of every kind."""

    names: Annotated[tuple[str, ...], Guarded("secrets")] = ()
    switch: Annotated[bool, Guarded("a switch")] = False
    host: Annotated[str, Guarded("an address", free=("::1",))] = "here"
    always: Annotated[str, Guarded("a place", always=True)] = "there"
    type: Annotated[Literal["a", "b"], Guarded("machines")] = "a"
    items: tuple[Item, ...] = ()
    by_name: Annotated[dict[str, Item] | None, HARMLESS] = None
    path: Path | None = None
    mixed: int | str = 0
    closed: Closed | None = None


ALWAYS = {"always": ("there",)}


def check(root: Path, allowed: Mapping[str, tuple[str, ...] | None] | None = None, **keys: Any) -> None:
    Trust(root=root, allowed={**ALWAYS, **(allowed or {})}).check(Request(**keys))


def refuse(root: Path, place: str, allowed: Mapping[str, tuple[str, ...] | None] | None = None, **keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        check(root, allowed, **keys)
    assert str(caught.value).startswith(f"{place} ")
    return str(caught.value)


def test_each_item_of_a_list_has_to_be_allowed(tmp_path: Path) -> None:
    allowed = {"names": ("a", "b*")}
    check(tmp_path, allowed, names=("a", "bcd"))
    for names in (("a", "c"), ("c",), ("ab",)):
        refuse(tmp_path, "names", allowed, names=names)


def test_items_are_allowed_by_their_key_without_numbers(tmp_path: Path) -> None:
    items = (Item(name="x"), Item(name="y"))
    assert "--allow items.name)" in refuse(tmp_path, "items[0].name", items=items)
    check(tmp_path, {"items.name": ("x", "y")}, items=items)
    refuse(tmp_path, "items[1].name", {"items.name": ("x",)}, items=items)
    refuse(tmp_path, "items[0].name", {"items[1].name": None}, items=items)


def test_keys_of_mappings_are_looked_at(tmp_path: Path) -> None:
    refuse(tmp_path, "by_name.a.name", by_name={"a": Item(name="x")})
    refuse(tmp_path, "by_name.a.file", by_name={"a": Item(file=Path("/etc/passwd"))})


def test_defaults_and_free_values_are_taken_but_where_a_key_is_always_guarded(tmp_path: Path) -> None:
    check(tmp_path, host="here")
    check(tmp_path, host="::1")
    refuse(tmp_path, "host", host="0.0.0.0")
    for keys in ({}, {"always": "there"}):
        with pytest.raises(InputError, match="always is refused"):
            Trust(root=tmp_path).check(Request(**keys))


def test_a_type_that_is_written_is_no_default(tmp_path: Path) -> None:
    check(tmp_path)
    refuse(tmp_path, "type", type="a")
    check(tmp_path, {"type": ("a",)}, type="a")


def test_truth_values_are_written_as_in_yaml(tmp_path: Path) -> None:
    check(tmp_path, {"switch": ("true",)}, switch=True)
    for text in ("True", "false", "1"):
        refuse(tmp_path, "switch", {"switch": (text,)}, switch=True)


def test_types_that_may_hold_text_and_closed_mappings_are_refused(tmp_path: Path) -> None:
    refuse(tmp_path, "mixed", mixed="http://x")
    refuse(tmp_path, "closed.port", closed=Closed(port=1))


def test_places_in_buckets_are_allowed_by_what_they_lie_below(tmp_path: Path) -> None:
    allowed = {"path": ("s3://sea/a", str(tmp_path / "other"))}
    for text in ("s3://sea/a", "s3://sea/a/b.zarr"):
        check(tmp_path, allowed, path=locate(text))
    for text in ("s3://sea/ab", "s3://sea/b", "s3://other/a", "gs://sea/a"):
        refuse(tmp_path, "path", allowed, path=locate(text))
        refuse(tmp_path, "path", {"path": None}, path=locate(text))


def test_local_places_are_compared_where_their_links_lead(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    (tmp_path / "alias").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    check(root, path=root / "a")
    check(root, {"path": (str(tmp_path / "alias"),)}, path=outside / "a")
    for path in (root / "link" / "a", root / ".." / "b", root / "loop", tmp_path / "root-not"):
        refuse(root, "path", path=path)
    refuse(root, "path", {"path": None}, path=outside)


def test_what_a_path_leads_to_is_shown_without_control_characters(tmp_path: Path) -> None:
    assert "\x1b" not in refuse(tmp_path, "path", path=Path("/etc/\x1b[2J"))


def test_words_and_schemes_of_packages_are_refused_inside_the_block_alone(tmp_path: Path) -> None:
    check_word("dorff.kernels", "foreign")
    with trusting(Trust(root=tmp_path, allowed={"dorff.kernels": ("own",), "dorff.storage": ("ftp",)})):
        check_word("dorff.kernels", "own")
        check_scheme("ftp://host/a")
        check_scheme("s3://bucket/a")
        check_scheme("plain/path")
        for refused in (lambda: check_word("dorff.kernels", "foreign"), lambda: check_scheme("http://host/a")):
            with pytest.raises(InputError, match="--allow dorff"):
                refused()
    check_word("dorff.kernels", "foreign")
    check_scheme("http://host/a")


def test_links_on_the_way_of_a_path_are_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, outside, outside / "deep"):
        folder.mkdir()
    (outside / "policy").touch()
    (root / "to-policy").symlink_to(outside / "policy")
    (outside / "absolute").symlink_to(root / "to-policy")
    (outside / "relative").symlink_to(os.path.join("..", "root", "to-policy"))
    (outside / "deep" / "up").symlink_to(os.path.join("..", "..", "root"))
    (outside / "away").symlink_to(outside / "deep")
    (outside / "loop").symlink_to(outside / "loop")
    through = ("absolute", "relative", "deep/up/x", "loop", "../root/a", "deep/../absolute", "away/up/to-policy")
    for path in through:
        assert leads_through(outside / path, root), path
    for path in ("policy", "away/x", "deep/../policy", "../other", "../root-not/a", "missing/a"):
        assert not leads_through(outside / path, root), path
