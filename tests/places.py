"""Where the project's folders are, for tests in any folder."""

import os
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
ROOT: Final = TESTS.parent
#: Where processes find the tests' own modules.
PATHS: Final = [str(TESTS), *sorted(str(folder) for folder in TESTS.iterdir() if folder.is_dir())]
PYTHONPATH: Final = os.pathsep.join(PATHS)
