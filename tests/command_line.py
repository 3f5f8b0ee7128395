"""How the tests type commands: in this process where that is enough, else through the installed script."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner, Result

from dorff.cli.commands import app
from dorff.kernels.scalar import FloatArray

DORFF = str(Path(sys.executable).with_name("dorff"))
CURL = {"type": "curl_free", "scalar": {"type": "gaussian", "lengthscale": 0.5}}
INDEPENDENT = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 0.5}}


def call(*words: object) -> Result:
    """A command in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def run(*words: object, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return subprocess.run(
        [DORFF, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **(env or {})},
        **options,
    )


def answer(*words: object) -> Any:
    """The JSON that a command in a process of its own prints, and nothing else; it must succeed."""
    done = run(*words, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder below a folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def field(n: int, seed: int = 0) -> FloatArray:
    """Rows (n, 4) of places in a square and a curl-free field there, with some noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 2))
    x, y = 3 * X.T
    Y = np.column_stack([np.cos(x) * np.sin(y), np.sin(x) * np.cos(y)]) + 0.05 * rng.standard_normal((n, 2))
    return np.column_stack([X, Y])


def write_csv(path: Path, rows: FloatArray) -> Path:
    """Rows under the header a,b,u,v."""
    np.savetxt(path, rows, delimiter=",", header="a,b,u,v"[: 2 * rows.shape[1] - 1], comments="")
    return path


def write_job(path: Path, **changes: object) -> Path:
    """A small job on sea.zarr, of random features unless it says otherwise; JSON is YAML."""
    job: dict[str, object] = {
        "data": {"store": "sea.zarr"},
        "kernel": CURL,
        "features": {"count": 64},
        "cluster": {"type": "serial"},
        "state": "runs/sea",
        "model": "models/sea",
    }
    job |= changes
    if isinstance(features := job["features"], dict):
        job["features"] = {"sampler": {"type": "orthogonal"}, **features}
    path.write_text(json.dumps(job))
    return path
