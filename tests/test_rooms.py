"""The rooms of the package: who may import whom. Read from the sources, so that nothing has to run."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from places import ROOT

PACKAGE = ROOT / "dorff"

# An arrow means: may import that, and what that may import.
ARROWS: dict[str, str] = {
    "errors": "",  # signals, and what must not be said or written, too: no room is lighter
    "storage": "errors",  # local folders and other places: files, locks, what is durable
    "loops": "errors",
    "kernels": "spec",  # each brings its words and their options
    "frequencies": "kernels loops",
    "features": "frequencies",  # and the length-scales that the evidence of a few rows finds
    "exact": "kernels",
    "bounds": "kernels",
    "moments": "loops",  # sums of exponentials are loops
    "spec": "storage",
    "graphs": "spec",  # neighbours of rows, Laplacians, what a manifold term is
    "model": "features",  # weights, deviations, bands and probabilities; what solvers make
    "solvers": "moments model",
    "data": "spec",  # formats of files register themselves
    "store": "moments model storage",
    "engine": "spec moments",  # where tasks run: knows nothing of rows
    "passes": "data features graphs store engine",  # a pass over the rows: its spec and constants, leaves, the tree
    "plan": "passes solvers",
    "manifold": "plan",  # graphs over data larger than memory, and the sums T of manifold terms
    "predict": "plan",
    "fit": "predict manifold",  # direct and streaming fits, searches, the gate and the switch to a new version
    "report": "solvers store data",  # units of times are shown as dates
    "estimators": "fit predict report bounds",
    "cli": "estimators",  # any above
    # dorff/__init__.py, which imports the public names when they are asked for
    "": "estimators",
}

# Third-party libraries that only some rooms may import; the rooms of NUMERIC may import nothing else of them.
NUMERIC = "errors spec loops kernels frequencies features exact bounds moments graphs solvers model"
NUMERIC_LIBRARIES = {"numpy", "scipy", "numba"}
MORE_FOR = {
    "spec": {"pydantic", "pydantic_core", "yaml"},  # a job file is checked where its types are
    "moments": {"threadpoolctl"},  # BLAS threads are pinned where BLAS is called
    "graphs": {"sklearn"},  # the one neighbour library
    # Numba's other half, and how Numba itself keeps compiled loops: machine code in a directory that only its owner
    # can write to. Loading it runs it, whatever the format; models, state and data never hold a pickle.
    "loops": {"llvmlite", "pickle"},
}
KEPT_TO = {
    "zarr": "storage data store estimators",
    "numcodecs": "data store",
    "google_crc32c": "data store",
    "obstore": "storage",  # buckets; optional
    "dask": "engine estimators",
    "distributed": "engine estimators",
    "dask_jobqueue": "engine",  # workers that are jobs of Slurm's
    "dask_mpi": "engine",  # those that mpirun starts
    "mpi4py": "engine",
    "prometheus_client": "cli",
    "kr8s": "engine",  # asks Kubernetes' API server; httpx is what it asks by, and whose errors it raises
    "httpx": "engine",
}
FORBIDDEN = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}  # they run code from a file

# Import names that differ from the name of the distribution in pyproject.toml.
DISTRIBUTIONS = {
    "dask_jobqueue": "dask-jobqueue",
    "dask_mpi": "dask-mpi",
    "httpx": "kr8s",
    "cf_xarray": "cf-xarray",
    "google_crc32c": "google-crc32c",
    "llvmlite": "numba",
    "pydantic_core": "pydantic",
    "prometheus_client": "prometheus-client",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def closure(arrows: Mapping[str, str]) -> dict[str, set[str]]:
    """Every room with all the rooms that its arrows lead to; CycleError if one leads back."""
    reach: dict[str, set[str]] = {}
    for room in TopologicalSorter({room: ends.split() for room, ends in arrows.items()}).static_order():
        ends = arrows[room].split()
        reach[room] = set(ends).union(*(reach[end] for end in ends))
    return reach


def room_of(module: str) -> str:
    """dorff.kernels.scalar -> kernels; dorff -> ''."""
    return module.split(".")[1] if "." in module else ""


def modules(package: Path) -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every module under the package's folder."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


@cache
def parsed(path: Path) -> ast.Module:
    """A file's syntax tree: several tests look at every file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(module: str, path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that the module imports, anywhere in it."""
    package = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *(node.module.split(".") if node.module else [])])
            if source != "dorff":
                yield node.lineno, source
                continue
            for alias in node.names:
                if alias.name != "__version__":  # a constant of the package itself, free to all
                    yield node.lineno, f"dorff.{alias.name}"


def faults(package: Path, arrows: Mapping[str, str] = ARROWS) -> list[str]:
    """Every import that the tables do not allow, and every cycle between rooms."""
    reach = closure(arrows)
    graph: dict[str, set[str]] = {}
    found = []
    for module, path in modules(package):
        room = room_of(module)
        if room not in reach:
            found.append(f"{module}: '{room}' is not a room")
            continue
        for line, name in imports(module, path):
            where, top = f"{module}, line {line}", name.split(".")[0]
            if top == "dorff":
                end = room_of(name)
                if end != room:
                    graph.setdefault(room, set()).add(end)
                    if end not in reach[room]:
                        found.append(f"{where}: {room or 'dorff'} may not import {end or 'dorff'}")
            elif not library_allowed(room, top):
                found.append(f"{where}: {room or 'dorff'} may not import {top}")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found.append(f"cycle: {' <- '.join(error.args[1])}")
    return found


def library_allowed(room: str, library: str) -> bool:
    if library in MORE_FOR.get(room, set()):
        return True
    if library in FORBIDDEN:
        return False
    if library in sys.stdlib_module_names:
        return True
    if room in NUMERIC.split():
        return library in NUMERIC_LIBRARIES
    return library not in KEPT_TO or room in KEPT_TO[library].split()


def leftovers(package: Path) -> list[str]:
    """Modules that are unfinished, or let NumPy unpickle."""
    found = []
    for module, path in modules(package):
        text = path.read_text(encoding="utf-8")
        words = re.findall(r"\b(?:TODO|FIXME|raise NotImplementedError|allow_pickle\s*=\s*True)\b", text)
        found += [f"{module}: {word}" for word in words]
    return found


def plant(folder: Path, files: Mapping[str, str]) -> Path:
    """A small package named dorff with these files."""
    package = folder / "dorff"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return package


def test_the_package_keeps_to_its_rooms() -> None:
    assert faults(PACKAGE) == []


def test_the_table_says_what_the_design_says() -> None:
    reach = closure(ARROWS)
    below = {"spec", "storage", "errors"}  # what the words of a job are made with
    assert reach["model"] == {"features", "frequencies", "kernels", "loops", *below}
    assert "engine" not in reach["solvers"] and "solvers" not in reach["store"]
    assert reach["cli"] == set(ARROWS) - {"cli", "exact", ""}


def test_what_is_imported_first_is_light_and_solvers_see_no_model() -> None:
    def ends(*rooms: str) -> set[str]:
        within = [(module, path) for module, path in modules(PACKAGE) if module in rooms]
        found = {name for module, path in within for _, name in imports(module, path)}
        return {name for name in found if name.startswith("dorff.")}

    assert ends("dorff.errors.stopping", "dorff.errors.secrets") == {"dorff.errors"}
    solvers = [module for module, _ in modules(PACKAGE) if module.startswith("dorff.solvers")]
    assert {name for name in ends(*solvers) if name.startswith("dorff.model")} == {
        "dorff.model.losses",
        "dorff.model.weights",
        "dorff.model.posterior",
    }


def test_every_library_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for name, lines in project["optional-dependencies"].items() if name != "test" for line in lines]
    declared = {re.split(r"[^\w-]", line)[0].lower() for line in [*project["dependencies"], *extras]}
    for module, path in modules(PACKAGE):
        for line, name in imports(module, path):
            top = name.split(".")[0]
            if top != "dorff" and top not in sys.stdlib_module_names:
                assert DISTRIBUTIONS.get(top, top) in declared, f"{module}, line {line}: {top} is not declared"


def test_modules_are_finished() -> None:
    assert leftovers(PACKAGE) == []


def test_unfinished_modules_are_found(tmp_path: Path) -> None:
    texts = (
        "# TODO: more\n",
        "raise NotImplementedError\n",
        "load(p, allow_pickle = True)\n",
        "x = 1\n",
    )
    package = plant(tmp_path, {f"m{i}.py": text for i, text in enumerate(texts)})
    first, *rest = leftovers(package)
    assert first == "dorff.m0: TODO"
    assert rest == ["dorff.m1: raise NotImplementedError", "dorff.m2: allow_pickle = True"]


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("kernels/a.py", "from dorff.model import Model\n", "dorff.kernels.a, line 1: kernels may not import model"),
        ("kernels/a.py", "from dorff import model\n", "dorff.kernels.a, line 1: kernels may not import model"),
        ("kernels/a.py", "from .. import model\n", "dorff.kernels.a, line 1: kernels may not import model"),
        ("kernels/a.py", "from ..model import Model\n", "dorff.kernels.a, line 1: kernels may not import model"),
        ("kernels/__init__.py", "from ..fit import f\n", "dorff.kernels, line 1: kernels may not import fit"),
        ("solvers/a.py", "def f():\n    import dorff.fit\n", "dorff.solvers.a, line 2: solvers may not import fit"),
        ("model.py", "import dorff\n", "dorff.model, line 1: model may not import dorff"),
        ("moments.py", "import sklearn.base\n", "dorff.moments, line 1: moments may not import sklearn"),
        ("moments.py", "from zarr import open\n", "dorff.moments, line 1: moments may not import zarr"),
        ("kernels/a.py", "import yaml\n", "dorff.kernels.a, line 1: kernels may not import yaml"),
        ("passes/leaf.py", "import zarr\n", "dorff.passes.leaf, line 1: passes may not import zarr"),
        ("engine/dask.py", "import dorff.passes\n", "dorff.engine.dask, line 1: engine may not import passes"),
        ("fit.py", "import dask.array as da\n", "dorff.fit, line 1: fit may not import dask"),
        ("cli.py", "from distributed import Client\n", "dorff.cli, line 1: cli may not import distributed"),
        ("store/a.py", "import pickle\n", "dorff.store.a, line 1: store may not import pickle"),
        ("helpers.py", "", "dorff.helpers: 'helpers' is not a room"),
    ],
)  # fmt: skip
def test_a_forbidden_import_is_found(tmp_path: Path, file: str, text: str, fault: str) -> None:
    assert faults(plant(tmp_path, {file: text})) == [fault]


def test_a_cycle_is_found(tmp_path: Path) -> None:
    package = plant(tmp_path, {"moments.py": "import dorff.graphs\n", "graphs.py": "from dorff import moments\n"})
    found = faults(package)
    assert len(found) == 3 and found[-1] in (
        "cycle: moments <- graphs <- moments",
        "cycle: graphs <- moments <- graphs",
    )
    with pytest.raises(CycleError):
        closure({"moments": "graphs", "graphs": "moments"})


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    allowed = {
        "__init__.py": "from dorff.store import load_model\n",
        "errors.py": "import enum\n",
        "spec.py": "import yaml\nfrom pydantic import BaseModel\nfrom dorff.errors import InputError\n",
        "model.py": "import numpy as np\nfrom dorff import __version__, kernels\nfrom dorff.loops.trig import trig\n",
        "store/models.py": "import zarr\nfrom . import receipts\nfrom ..model import Model\n",
        "store/receipts.py": "import json\n",
        "engine/dask.py": "import distributed\nfrom dorff.spec import Job\n",
        "cli.py": "import typer\nfrom dorff.cli.demo import demo\nfrom dorff.spec import load_job\n",
    }
    assert faults(plant(tmp_path, allowed)) == []


@pytest.mark.process
def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import dorff, sys; print({'numba', 'dask', 'zarr', 'numpy'} & set(sys.modules), 'kernels' in dir(dorff))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "set() True\n"


def test_public_names_are_imported_when_asked_for() -> None:
    import dorff

    assert dorff.kernels.__name__ == "dorff.kernels"
    assert dorff.load_model.__module__.startswith("dorff.store")
    with pytest.raises(AttributeError, match="module 'dorff' has no attribute 'nothing'"):
        getattr(dorff, "nothing")  # noqa: B009
