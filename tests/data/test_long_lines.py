"""Lines of text without end are refused by a sentence, wherever they are, in little memory; wide tables are read."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from dorff.data import ingest, open_dataset
from dorff.data.csv_stream import MOST_LINE
from dorff.errors import InputError

LONG = b"1" * (8 * MOST_LINE)
ROWS = b"a,b\n" + b"1,2\n" * 100
#: What each file holds, and what is said of it.
FILES = {
    "first line": (LONG, "line 1 is longer than 4 MiB"),
    "first line, ended": (LONG + b"\n1\n", "line 1 is longer than 4 MiB"),
    "first line, quoted": (b'"' + LONG, "line 1 is longer than 4 MiB"),
    "separators": (b"," * len(LONG), "line 1 is longer than 4 MiB"),
    "more columns than tables have": (b"," * (MOST_LINE - 8) + b"\n1\n1\n1\n1\n", "262,144 fields"),
    "comment": (b"#" + LONG + b"\n" + ROWS, "line 1 is longer than 4 MiB"),
    "first row": (b"a,b\n" + LONG, "line 2 is longer than 4 MiB"),
    "a later row": (ROWS + LONG + b"\n1,2\n", "longer than"),
    "a later row in quotes": (ROWS + b'"' + LONG + b'",2\n1,2\n', "line 102 opens a quote that does not end"),
    "a quote over many lines": (ROWS + b'"' + b"x\n" * MOST_LINE, "line 102 opens a quote that does not end"),
    "a later row of blanks": (b"a b\n" + b"1 2\n" * 100 + b"1 " * len(LONG), "line 102 is longer than 4 MiB"),
    "a later comment": (b"# c\n" + ROWS + b"#" + LONG + b"\n1,2\n", "line 103 is longer than 4 MiB"),
    "empty lines": (b"\n" * (2 * len(LONG)) + ROWS, "lines that are not empty"),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("case", FILES)
def test_long_lines_are_refused(tmp_path: Path, case: str, zipped: bool) -> None:
    content, problem = FILES[case]
    path = tmp_path / ("a.csv.gz" if zipped else "a.csv")
    path.write_bytes(gzip.compress(content, 1) if zipped else content)
    with pytest.raises(InputError, match=problem):
        ingest([path], tmp_path / "s.zarr", inputs=["a"])
    assert not (tmp_path / "s.zarr").exists()


READ = """
import sys
from pathlib import Path
from dorff.data import ingest
from dorff.errors import InputError
good, *paths, out = sys.argv[1:]
ingest([good], out, inputs=["a"])
status = lambda: Path("/proc/self/status").read_text()  # ru_maxrss begins with the parent's
peak = lambda: int(status().split("VmHWM:")[1].split()[0]) >> 10
before = peak()
for path in paths:
    try:
        ingest([path], out + "2", inputs=["a"])
    except InputError:
        print(peak() - before)
"""


@pytest.mark.process
def test_they_take_little_memory(tmp_path: Path) -> None:
    """A gigabyte in a megabyte."""
    (tmp_path / "good.csv").write_bytes(ROWS)
    begins = {"first": b"", "row": b"a,b\n", "later": ROWS, "quoted": ROWS + b'"', "comment": b"#"}
    for name, begin in begins.items():
        with gzip.open(tmp_path / f"{name}.csv.gz", "wb", 1) as file:
            file.write(begin)
            for _ in range(2**10):
                file.write(b"1" * 2**20)
    paths = [tmp_path / f"{name}.csv.gz" for name in begins]
    command = [sys.executable, "-c", READ, tmp_path / "good.csv", *paths, tmp_path / "s.zarr"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    taken = list(map(int, done.stdout.split()))
    assert len(taken) == len(paths) and max(taken) < 128, done.stdout + done.stderr[-2000:]


def test_a_table_of_a_hundred_thousand_columns_is_read(tmp_path: Path) -> None:
    """Of fewer rows than a sample of the file's first bytes holds."""
    width = 100_000
    names, row = (",".join(parts) for parts in ([f"c{j}" for j in range(width)], ["1.5"] * width))
    (tmp_path / "a.csv").write_text("\n".join([names, *[row] * 6]) + "\n")
    assert ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", inputs=["c5", "c99999"]) == 6
    assert open_dataset(tmp_path / "s.zarr", targets=None).read(0, 6)[0].tolist() == [[1.5, 1.5]] * 6


@pytest.mark.parametrize("kind", ["blanks", "tabs and blanks", "comments"])
def test_blocks_of_wide_tables_end_where_lines_do(tmp_path: Path, kind: str) -> None:
    """Blocks are larger than the longest line there; separators, and comments, may be where one ends."""
    separator = {"blanks": " " * 16, "tabs and blanks": "\t  \t" * 4, "comments": ","}[kind]
    width, rows = 4000, 160
    names = [f"v{place:0>20}" for place in range(width)]
    line = separator.join(["0.5"] * (width - 1)) + "\n"
    comment = "# " + "about, " * 10_000 + "\n" if kind == "comments" else ""
    with open(tmp_path / "a.dat", "w") as file:
        file.write(comment + separator.join(names) + "\n")
        for row in range(rows):
            file.write(f"{row}{separator}{line}{comment}")
    text = {"delimiter": "blanks"} if kind == "tabs and blanks" else {}
    ingest([tmp_path / "a.dat"], tmp_path / "a.zarr", inputs=[names[0], names[-1]], text=text)
    X = open_dataset(tmp_path / "a.zarr", targets=None).read(0, rows)[0]
    assert X[:, 0].tolist() == list(range(rows))
    assert set(X[:, 1]) == {0.5}
