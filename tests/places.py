"""Where the project's folders are, for tests in any folder."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

TESTS: Final = Path(__file__).parent
ROOT: Final = TESTS.parent
#: Where processes find the tests' own modules.
PATHS: Final = [str(TESTS), *sorted(str(folder) for folder in TESTS.iterdir() if folder.is_dir())]
PYTHONPATH: Final = os.pathsep.join(PATHS)


def benchmark(name: str) -> ModuleType:
    """A file of benchmarks/, which is no package, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module
