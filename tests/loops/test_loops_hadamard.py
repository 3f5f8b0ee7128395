"""hadamard_chain against scipy.linalg.hadamard; their machine code; what a cold process compiles."""

import os
import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard as sylvester

from dorff.errors import InputError
from dorff.loops import hadamard_chain

EPS = np.finfo(float).eps
UNTOUCHED = 7.0


@cache
def matrix(n):
    return sylvester(n).astype(float)


def hadamard(x, out):
    """The transform alone: a chain of one block and one diagonal of ones."""
    n = x.shape[1]
    none, every = np.empty((1, 0), np.int32), np.arange(n)
    hadamard_chain(x, np.ones(n), np.ones((1, 1, n)), none, every, np.ones(n), out)


def run(x, *, extra=2):
    """hadamard into a wider buffer, with a check that nothing else of it was written."""
    b, n = x.shape
    buffer = np.full((b, n + extra), UNTOUCHED)
    hadamard(x, buffer)
    assert np.all(buffer[:, n:] == UNTOUCHED)
    return buffer[:, :n]


@settings(max_examples=40)
@given(b=st.integers(0, 40), k=st.integers(0, 9), extra=st.integers(0, 3), seed=st.integers(0, 2**32 - 1))
def test_agrees_with_the_dense_product(b, k, extra, seed):
    x = np.random.default_rng(seed).normal(size=(b, 2**k))
    bound = (k + 1) * EPS * np.abs(x).sum(axis=1, keepdims=True)
    assert np.all(np.abs(run(x, extra=extra) - x @ matrix(2**k)) <= bound)


@pytest.mark.parametrize("k", range(14))
def test_columns_of_every_size_are_exact(k):
    """Entry (i, j) of Sylvester's matrix is the parity of i & j: no arithmetic, and no dense matrix of 8192."""
    n = 2**k
    rows = np.unique(np.random.default_rng(k).integers(0, n, 19) | np.array([0, n // 2, n - 1] + [0] * 16))
    x = np.zeros((len(rows), n))
    x[np.arange(len(rows)), rows] = 1
    assert np.array_equal(run(x), 1.0 - 2.0 * (np.bitwise_count(rows[:, None] & np.arange(n)) & 1))


@pytest.mark.parametrize("n", [4, 64, 1024])
def test_a_row_has_the_same_bits_in_any_block(n):
    x = np.random.default_rng(n).normal(size=(37, n))
    whole = run(x)
    for start, stop in [(0, 1), (36, 37), (3, 20), (5, 13), (30, 37)]:
        assert np.array_equal(run(x[start:stop]), whole[start:stop])
    strided = np.zeros((74, n + 5))
    strided[::2, 3 : n + 3] = x
    strided.flags.writeable = False
    assert np.array_equal(run(strided[::2, 3 : n + 3]), whole)


def test_a_bad_row_leaves_its_neighbours_alone():
    x = np.random.default_rng(0).normal(size=(16, 64))
    plain = run(x)
    x[3, 5], x[9, 0] = np.nan, np.inf
    good = ~np.isin(np.arange(16), [3, 9])
    assert np.array_equal(run(x)[good], plain[good])
    assert np.isnan(run(x)[3]).all() and not np.isfinite(run(x)[9]).any()


# Chains


def draw(seed, *, d, n, B, K, permuted, share):
    """Arguments of hadamard_chain; entries of the diagonals are of size 1 / sqrt(n), so that norms stay."""
    rng = np.random.default_rng(seed)
    stretch = rng.uniform(0.5, 2, d)
    diagonals = rng.choice([-1, 1], (B, K, n)) * rng.uniform(0.5, 2, (B, K, n)) / np.sqrt(n)
    order = np.array([rng.permutation(n) for _ in range(B)], np.int32).reshape(B, n)
    rows = np.sort(rng.choice(B * n, int(share * B * n), replace=False))
    gains = rng.uniform(-2, 2, len(rows))
    return stretch, diagonals, order if permuted else order[:, :0].copy(), rows, gains


def dense(x, stretch, diagonals, permutation, rows, gains):
    B, K, n = diagonals.shape
    blocks = [np.empty((len(x), 0))]
    for k in range(B):
        y = np.zeros((len(x), n))
        y[:, : x.shape[1]] = x * stretch
        for s in range(K):
            if s == 1 and permutation.size:
                y = y[:, permutation[k]]
            y = (y * diagonals[k, s]) @ matrix(n)
        blocks.append(y)
    return np.hstack(blocks)[:, rows] * gains


def chain(x, arguments, *, extra=1):
    D = len(arguments[-1])
    out = np.full((len(x), D + extra), UNTOUCHED)
    hadamard_chain(x, *arguments, out)
    assert np.all(out[:, D:] == UNTOUCHED)
    return out[:, :D]


@settings(max_examples=40)
@given(
    b=st.integers(0, 20),
    d=st.integers(0, 70),
    more=st.integers(0, 1),
    B=st.integers(0, 4),
    K=st.integers(1, 3),
    permuted=st.booleans(),
    share=st.sampled_from([0.0, 0.05, 0.6, 1.0]),
    extra=st.integers(0, 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_chain_agrees_with_the_dense_product(b, d, more, B, K, permuted, share, extra, seed):
    n = 2 ** ((max(d, 1) - 1).bit_length() + more)
    arguments = draw(seed, d=d, n=n, B=B, K=K, permuted=permuted, share=share)
    x = np.random.default_rng(seed + 1).normal(size=(b, d))
    # Each stage grows norms twofold at most and rounds each of its log n + 1 steps.
    bound = K * (n.bit_length() + 1) * EPS * 2.0 ** (K + 2) * np.linalg.norm(x, axis=1, keepdims=True)
    assert np.all(np.abs(chain(x, arguments, extra=extra) - dense(x, *arguments)) <= bound)


@pytest.mark.parametrize("permuted", [True, False])
@pytest.mark.parametrize(("d", "n"), [(200, 256), (300, 512), (784, 1024), (1500, 2048)])
def test_large_chains_agree_with_the_dense_product(d, n, permuted):
    arguments = draw(d, d=d, n=n, B=2, K=2, permuted=permuted, share=0.5)
    x = np.random.default_rng(d).normal(size=(9, d))
    bound = 1e-14 * np.linalg.norm(x, axis=1, keepdims=True)
    assert np.all(np.abs(chain(x, arguments) - dense(x, *arguments)) <= bound)


@pytest.mark.parametrize(("d", "n"), [(300, 512), (784, 1024), (3072, 4096)])
def test_chain_of_signs_keeps_lengths(d, n):
    """SORF: three normalised transforms and signs, an isometry."""
    rng = np.random.default_rng(d)
    signs = rng.choice([-1, 1], (2, 3, n)) / np.sqrt(n)
    x = rng.normal(size=(9, d))
    none, every = np.empty((2, 0), np.int32), np.arange(2 * n)
    z = chain(x, (np.ones(d), signs, none, every, np.ones(2 * n)))
    lengths = np.linalg.norm(z.reshape(9, 2, n), axis=2)
    expected = np.linalg.norm(x, axis=1)[:, None]
    assert np.allclose(lengths, expected, rtol=200 * EPS, atol=0)


@pytest.mark.parametrize("d", [3, 50, 784])
def test_chain_gives_a_row_the_same_bits_in_any_block(d):
    n = 2 ** (d - 1).bit_length()
    arguments = draw(d, d=d, n=n, B=2, K=2, permuted=True, share=0.7)
    for parameter in arguments:
        parameter.flags.writeable = False
    x = np.random.default_rng(d).normal(size=(37, d))
    whole = chain(x, arguments)
    for start, stop in [(0, 1), (36, 37), (3, 20), (5, 13), (30, 37)]:
        assert np.array_equal(chain(x[start:stop], arguments), whole[start:stop])
    strided = np.zeros((37, d + 4))
    strided[:, 1 : d + 1] = x
    assert np.array_equal(chain(strided[:, 1 : d + 1], arguments), whole)


X = np.zeros((4, 6))
FITS = dict(
    x=X,
    stretch=np.ones(6),
    diagonals=np.ones((2, 3, 8)),
    permutation=np.zeros((2, 8), np.int32),
    rows=np.arange(5),
    gains=np.ones(5),
    out=np.zeros((4, 5)),
)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("x", X.astype(int), "x must be a float64 matrix"),
        ("x", X.astype(np.float32), "x must be a float64 matrix"),
        ("stretch", np.ones(5), r"stretch must be C-contiguous float64 of shape \(6,\)"),
        ("diagonals", np.ones((2, 3, 6)), "diagonals must be .* a power of two from 6 on"),
        ("diagonals", np.ones((2, 3, 4)), "diagonals must be .* a power of two from 6 on"),
        ("diagonals", np.ones((2, 0, 8)), r"diagonals must be of shape \(blocks, 1 or more"),
        ("diagonals", np.ones((2, 3, 8), np.float32), "diagonals must be C-contiguous float64"),
        ("permutation", np.zeros((2, 8), np.int64), r"permutation must be C-contiguous int32 of shape \(2, 8\)"),
        ("permutation", np.zeros((1, 8), np.int32), r"permutation must be C-contiguous int32 of shape \(2, 8\)"),
        ("permutation", np.full((2, 8), 8, np.int32), r"permutation must lie in \[0, 8\)"),
        ("permutation", np.full((2, 8), -1, np.int32), r"permutation must lie in \[0, 8\)"),
        ("rows", np.arange(5, dtype=np.int32), "rows must be C-contiguous int64"),
        ("rows", np.array([0, 1, 2, 4, 3]), r"rows must ascend within \[0, 16\)"),
        ("rows", np.arange(12, 17), r"rows must ascend within \[0, 16\)"),
        ("rows", np.arange(-1, 4), r"rows must ascend within \[0, 16\)"),
        ("gains", np.ones(4), r"gains must be C-contiguous float64 of shape \(5,\)"),
        ("out", np.zeros((4, 4)), r"out must be float64 of shape \(4, 5 or more\)"),
        ("out", X, "out must not overlap x"),
    ],
)
def test_chain_refuses_what_does_not_fit(name, value, words):
    hadamard_chain(**FITS)
    with pytest.raises(InputError, match=words):
        hadamard_chain(**FITS | {name: value})


# Each in a fresh process with a cache of its own.


def fresh(code, directory):
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    environment = {**os.environ, "DORFF_CACHE_DIR": str(directory)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=True).stdout


USE = """
    import numpy as np
    from dorff.loops import butterfly_rules, hadamard_chain
    order, ones = np.arange(32, dtype=np.int32)[None], np.ones(32)
    hadamard_chain(np.ones((9, 32)), ones, np.ones((1, 1, 32)), order, np.arange(32), ones, np.empty((9, 32)))
"""


@pytest.mark.process
def test_a_cold_process_compiles_only_what_is_used(tmp_path):
    fresh(USE, tmp_path)
    names = [re.match(r"dorff\.loops\.(.*)-", file.name)[1] for file in tmp_path.rglob("dorff.loops.*")]
    used = {
        "projections": ["_chain_rows", "_ends"],
        "rotations": ["transform"],
        "tiles": ["copy_permuted", "give_rows", "new_tile", "take_rows"],
    }
    assert sorted(names) == [f"{module}.{name}" for module in used for name in used[module]]


ASSEMBLY = """
    import numpy as np
    from dorff.loops import rotations as module
    tile = np.zeros(16 * 8 + 8)
    tile = tile[-tile.ctypes.data % 64 // 8:][:128]
    module.transform(tile, np.ones(16), tile)
    print(next(iter(module.transform.inspect_asm().values())))
"""


@pytest.mark.process
def test_machine_code_works_on_vectors(tmp_path):
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if " avx2 " not in cpu:
        pytest.skip("the CPU has no AVX2")
    assembly = fresh(ASSEMBLY, tmp_path)
    packed = re.findall(r"\bv(?:add|sub)pd\s.*%[yz]mm", assembly)
    assert len(packed) >= 64, "a pass of radix 16 is 64 packed sums"
    assert not re.search(r"\bv?(?:add|sub)sd\s", assembly), "no sum of single numbers"
