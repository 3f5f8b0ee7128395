"""The data sets of Munkhoeva et al. (2018), section 4, from a folder of their original files.

`--data DIR` of the benchmarks: DIR/powerplant/ccpp.csv, DIR/letter/letter-recognition.data, DIR/usps/usps.npz,
DIR/mnist/*.gz, DIR/cifar10/*.npz (stands in for CIFAR-100), DIR/leukemia/*.csv.

The paper does not say how inputs are scaled, and with gamma = 1/d that decides how smooth the Gaussian kernel is.
Here, as in the program that its authors published: all inputs divided by their largest entry, after standardising the
columns of Powerplant. Two departures: the columns of CIFAR-10 are standardised, and LEUKEMIA is left at raw scale.
`other` is a second scaling of each, to see what hangs on it. Arc-cosine kernels feel no scaling by one number.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Data:
    """Inputs X (n, d), targets y (n,): numbers, or classes as integers from 0. Rows from `test` on are a test set."""

    name: str
    X: FloatArray
    y: npt.NDArray[np.generic]
    scaling: str
    other: FloatArray
    other_scaling: str
    test: int | None = None


def load(name: str, folder: Path) -> Data:
    """One of NAMES."""
    return _LOADERS[name](folder)


def standardised(X: FloatArray) -> FloatArray:
    """Columns with mean 0 and deviation 1; columns that do not vary are 0."""
    deviation = X.std(axis=0)
    scaled: FloatArray = (X - X.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    return scaled


def by_largest(X: FloatArray) -> FloatArray:
    """One number for all: the largest entry becomes 1."""
    return X / X.max()


def powerplant(folder: Path) -> Data:
    table = np.loadtxt(folder / "powerplant" / "ccpp.csv", delimiter=",", skiprows=1)
    X = standardised(table[:, :4])
    return Data("Powerplant", by_largest(X), table[:, 4], "standardised, then / largest", X, "standardised")


def letter(folder: Path) -> Data:
    lines = (folder / "letter" / "letter-recognition.data").read_text(encoding="ascii").split()
    rows = [line.split(",") for line in lines]
    X = np.array([[float(value) for value in row[1:]] for row in rows])
    y = np.array([ord(row[0]) - ord("A") for row in rows])
    return Data("LETTER", by_largest(X), y, "/ largest", standardised(X), "standardised")


def usps(folder: Path) -> Data:
    with np.load(folder / "usps" / "usps.npz") as file:
        X, y = (np.concatenate([file[f"{part}train"], file[f"{part}test"]]) for part in "xy")
        count = len(file["xtrain"])
    return Data("USPS", by_largest(X), y, "/ largest (-1 to 1)", standardised(X), "standardised", test=count)


def _idx(path: Path, offset: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(gzip.decompress(path.read_bytes()), dtype=np.uint8, offset=offset)


def mnist(folder: Path) -> Data:
    """The training part's 60000 rows; the test part is not read."""
    X = _idx(folder / "mnist" / "train-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype(np.float64)
    y = _idx(folder / "mnist" / "train-labels-idx1-ubyte.gz", 8)
    return Data("MNIST", by_largest(X), y, "/ largest (0 to 1)", standardised(X), "standardised")


def cifar10(folder: Path) -> Data:
    with np.load(folder / "cifar10" / "cifar10_train_first4000.npz") as file:
        X, y = file["x"].reshape(-1, 3072).astype(np.float64), file["y"]
    return Data("CIFAR-10", standardised(X), y, "standardised", by_largest(X), "/ largest (0 to 1)")


def leukemia(folder: Path) -> Data:
    """72 patients in order of their numbers, 7129 genes; class 1 is AML."""
    found: dict[int, list[float]] = {}
    for part in ("train", "independent"):
        path = folder / "leukemia" / f"data_set_ALL_AML_{part}.csv"
        with path.open(newline="", encoding="latin-1") as file:
            header, *genes = list(csv.reader(file))
        for column, title in enumerate(header):
            if title.strip().isdigit():
                found[int(title)] = [float(gene[column]) for gene in genes if gene]
    with (folder / "leukemia" / "actual.csv").open(newline="", encoding="ascii") as file:
        classes = {int(row["patient"]): int(row["cancer"] == "AML") for row in csv.DictReader(file)}
    X = np.array([found[patient] for patient in sorted(found)])
    y = np.array([classes[patient] for patient in sorted(found)])
    return Data("LEUKEMIA", X, y, "raw", by_largest(X), "/ largest")


_LOADERS: dict[str, Callable[[Path], Data]] = {
    "Powerplant": powerplant, "LETTER": letter, "USPS": usps, "MNIST": mnist, "CIFAR-10": cifar10,
    "LEUKEMIA": leukemia,
}  # fmt: skip
NAMES = tuple(_LOADERS)
