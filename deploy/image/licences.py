"""The licences of what requirements.lock pins, as the installed packages declare them; exit 1 where one is not open,
is not declared, or binds whoever ships the image (the GPL's family).

python deploy/image/licences.py
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

LOCK = Path(__file__).with_name("requirements.lock")
OPEN = re.compile(
    r"\b(MIT|BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla Public|Zlib|HPND|Unlicense|0BSD|CNRI)", re.I
)
BINDING = re.compile(r"\b(A|L)?GPL|GNU ", re.I)


def pinned() -> dict[str, str]:
    """Names and versions of the lock file."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE))


def licence(name: str) -> str:
    """What a package says: the expression, else its classifiers, else the first line of its text."""
    fields = metadata(name)
    classifiers = [one.split(" :: ")[-1] for one in fields.get_all("Classifier") or () if one.startswith("License ::")]
    text = str(fields.get("License", "")).strip()
    return str(fields.get("License-Expression", "")) or ", ".join(classifiers) or (text.splitlines() or [""])[0]


def main() -> int:
    bad = 0
    for name, version in pinned().items():
        try:
            says = licence(name)
        except PackageNotFoundError:
            says = "not installed here"
        fine = bool(OPEN.search(says)) and not BINDING.search(says)
        bad += not fine
        print(name, version, says, *([] if fine else ["<-- look at this one"]), sep="\t")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
