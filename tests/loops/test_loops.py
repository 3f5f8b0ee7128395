"""trig_pairs against long double; its machine code; where compiled code is kept."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from places import ROOT

from dorff.errors import InputError
from dorff.loops import scan, trig_pairs

EPS = np.finfo(float).eps
TOLERANCE = 3e-16
UNTOUCHED = 7.0


def run(z, *, scale=1.0, extra=3):
    """trig_pairs into a wider buffer, with a check that nothing else of it was written."""
    b, D = z.shape
    buffer = np.full((b, 2 * D + extra), UNTOUCHED)
    trig_pairs(z, buffer, np.full(D, scale))
    assert np.all(buffer[:, 2 * D :] == UNTOUCHED)
    return buffer[:, :D], buffer[:, D : 2 * D]


def worst(z, scale=1.0, **options):
    """Largest absolute error over both halves, against long double (80 bits on x86) rounded once."""
    c, s = run(z, scale=scale, **options)
    exact = z.astype(np.longdouble)
    return max(np.abs(c - scale * np.cos(exact)).max(), np.abs(s - scale * np.sin(exact)).max())


@settings(max_examples=60, deadline=None)
@given(
    b=st.integers(1, 9),
    D=st.integers(1, 70),
    extra=st.integers(0, 5),
    reach=st.sampled_from([1e-300, 1e-8, 1.0, 50.0, 1e4, 1e6, 1.5e6]),
    scale=st.sampled_from([1.0, 0.125, 3.7, -2.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_agrees_with_long_double(b, D, extra, reach, scale, seed):
    z = np.random.default_rng(seed).uniform(-reach, reach, (b, D))
    rounding = EPS * (scale != 1)  # of the product
    assert worst(z, scale, extra=extra) <= (TOLERANCE + rounding) * abs(scale)


def test_hard_arguments():
    """Around multiples of pi/4 (where quadrants change and results vanish) up to the reduction's limit."""
    quarter = np.arange(-950_000, 950_001, 19) * (np.pi / 2)
    edge = np.array([0.0, -0.0, 5e-324, 1e-310, np.pi / 4, 1.5e6, np.nextafter(1.5e6, 2e6)])
    near = [quarter, np.nextafter(quarter, 0.0), quarter + np.pi / 4, edge]
    z = np.concatenate(near)[None, :]
    assert worst(z) <= TOLERANCE


def test_small_sines_keep_relative_accuracy():
    z = np.logspace(-307, -0.2, 4001)[None, :]
    exact = np.sin(z.astype(np.longdouble))
    assert np.max(np.abs(run(z)[1] - exact) / exact) < 2.3e-16


def test_scale_is_that_of_trig_features():
    z = np.random.default_rng(0).normal(0, 30, (20, 64))
    scale = 1 / np.sqrt(64)
    c, s = run(z, scale=scale)
    assert np.allclose(np.sum(c * c + s * s, axis=1), 1, rtol=0, atol=10 * EPS)


def test_each_column_has_its_weight():
    """The weight multiplies the rounded cosine: the same bits as weighting afterwards, far entries included."""
    z = np.random.default_rng(5).normal(0, 30, (6, 53))
    z[2, ::7] = 3e9
    weights = np.random.default_rng(6).normal(size=53)
    weights[4] = 0
    out = np.empty((6, 106))
    weights.flags.writeable = False
    trig_pairs(z, out, weights)
    for got, plain in zip((out[:, :53], out[:, 53:]), run(z), strict=True):
        assert np.allclose(got, weights * plain, rtol=2 * EPS, atol=0)


def test_huge_arguments_take_libm_and_leave_their_neighbours_alone():
    z = np.random.default_rng(1).normal(0, 30, (5, 41))
    plain = run(z)
    huge = np.array([1.500001e6, -3e7, 2.0**52, 1e18, 1e100, -1e300, 1.7e308])
    z[1, ::6] = huge
    z[3, 40] = -1e300
    far = np.abs(z) > 1.5e6
    for got, before, libm in zip(run(z), plain, (np.cos, np.sin), strict=True):
        assert np.abs(got[far] - libm(z[far])).max() <= 3e-16
        assert np.array_equal(got[~far], before[~far])


def test_nan_and_inf_give_nan_and_nothing_else_does():
    z = np.random.default_rng(2).normal(0, 30, (6, 37))
    z[0, 0], z[2, 36], z[3, 17], z[3, 18] = np.nan, np.inf, -np.inf, -np.nan
    with np.errstate(all="raise"):
        c, s = run(z)
    assert np.array_equal(np.isnan(c), ~np.isfinite(z))
    assert np.array_equal(np.isnan(s), ~np.isfinite(z))


@settings(max_examples=40, deadline=None)
@given(D=st.integers(1, 100), start=st.integers(0, 99), seed=st.integers(0, 1000))
def test_an_entry_depends_on_its_value_alone(D, start, seed):
    """Bitwise, whether it falls in the vector loop or in what is left over: blocks may be cut anywhere."""
    z = np.random.default_rng(seed).normal(0, 30, (3, D))
    start = start % D
    for whole, part in zip(run(z), run(np.ascontiguousarray(z[1:, start:])), strict=True):
        assert np.array_equal(whole[1:, start:], part)


def test_inputs_may_be_strided_read_only_empty_or_of_one_row():
    base = np.random.default_rng(3).normal(0, 30, (8, 50))
    base.flags.writeable = False
    z = base[::2, 7:30]
    assert np.array_equal(run(z), run(z.copy()))
    assert np.array_equal(run(z[1:2], extra=0), run(z[1:2].copy(), extra=0))
    assert np.array_equal(run(z[:, :1]), run(z[:, :1].copy()))
    run(np.empty((0, 4)))
    run(np.empty((4, 0)))


Z = np.zeros((4, 6))


@pytest.mark.parametrize(
    ("z", "out", "words"),
    [
        (Z[0], np.zeros((4, 12)), "z must be a float64 matrix"),
        (Z.astype(int), np.zeros((4, 12)), "z must be .* is int64"),
        (Z, np.zeros((4, 11)), r"out must be float64 of shape \(4, 12 or more\)"),
        (Z, np.zeros((5, 12)), "out must be"),
        (Z, np.zeros((4, 12), np.float32), "out must be a float64 matrix, but is float32"),
        (Z.astype(np.float32), np.zeros((4, 12)), "z must be .* is float32"),
        (np.asfortranarray(Z), np.zeros((4, 12)), "z must have C-ordered rows"),
        (Z, np.zeros((4, 24))[:, ::2], "out must have C-ordered rows"),
        (Z, np.zeros((4, 12))[::-1], "out must have C-ordered rows"),
        (Z, np.broadcast_to(np.zeros(12), (4, 12)), "out must have C-ordered rows"),
        (Z.astype(">f8"), np.zeros((4, 12)), "z must be .* is >f8"),
    ],
)
def test_refuses_what_does_not_fit(z, out, words):
    with pytest.raises(InputError, match=words):
        trig_pairs(z, out, np.ones(6))


@pytest.mark.parametrize(
    "weights", [np.ones(5), np.ones((1, 6)), np.ones(6, np.float32), np.ones(12)[::2], np.ones(6, int)]
)
def test_refuses_weights_that_do_not_fit(weights):
    with pytest.raises(InputError, match=r"weights must be C-contiguous float64 of shape \(6,\)"):
        trig_pairs(Z, np.zeros((4, 12)), weights)


def test_refuses_read_only_and_overlapping_out():
    out = np.zeros((4, 12))
    with pytest.raises(InputError, match="overlap"):
        trig_pairs(out[:, :6], out, np.ones(6))
    out.flags.writeable = False
    with pytest.raises(InputError, match="writeable"):
        trig_pairs(Z, out, np.ones(6))


ASSEMBLY = """
    import numpy as np
    from dorff.loops import rowwise
    rowwise._trig_row(np.ones(8), np.empty(8), np.empty(8), np.ones(8))
    print(next(iter(rowwise._trig_row.inspect_asm().values())))
"""


@pytest.mark.process
def test_machine_code_is_vectorised(tmp_path):
    # A process with a cache of its own: code that was kept can be run, but not looked at.
    environment = {**os.environ, "DORFF_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", textwrap.dedent(ASSEMBLY)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=True)
    assembly = done.stdout
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if " avx2 " not in cpu or " fma " not in cpu:
        pytest.skip("the CPU has no AVX2")
    packed = re.findall(r"\bvfn?m(?:add|sub)\d+pd\s.*%[yz]mm", assembly)
    assert len(packed) >= 14, "each of the two polynomials and the reduction must be packed multiply-adds"
    assert re.search(r"\bvmov[au]p[ds]\s+%[yz]mm\d+,.*\(", assembly), "results must be stored packed"


# Where compiled code is kept. Each case is a fresh process, since that is what it is about.

USE = """
    import logging; logging.basicConfig(level=logging.DEBUG)
    import numpy as np
    from dorff.loops import cache_directory, rowwise, trig_pairs
    assert not rowwise._trig_rows.signatures and not rowwise._trig_row.signatures, "compiled at import"
    out = np.empty((2, 16))
    trig_pairs(np.ones((2, 8)), out, np.ones(8))
    assert np.allclose(out[:, :8], np.cos(1)) and np.allclose(out[:, 8:], np.sin(1))
    hits = sum(rowwise._trig_rows.stats.cache_hits.values())
    print(cache_directory(), hits)
"""


def start(tmp_path, *, code=USE, **environment):
    """A fresh interpreter whose home and temporary directory lie under tmp_path."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("DORFF_CACHE_DIR", "XDG_CACHE_HOME")}
    home = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env=inherited | {"PYTHONPATH": str(ROOT)} | home | environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    directory, hits = out.split()
    return Path(directory), int(hits), err


@pytest.mark.process
def test_code_is_kept_privately_and_found_again(tmp_path):
    chosen = {"DORFF_CACHE_DIR": str(tmp_path / "kept")}
    racers = [finish(p) for p in [start(tmp_path, **chosen) for _ in range(2)]]  # both compile at once
    directory = racers[0][0]
    assert directory == racers[1][0]
    assert directory.parents[1] == tmp_path / "kept"
    assert directory.stat().st_mode & 0o077 == 0 and directory.parent.stat().st_mode & 0o077 == 0
    files = sorted(directory.iterdir())
    assert len(files) == len({f.name.split("-")[0] for f in files}) >= 3, "no leftovers, one file a signature"
    assert finish(start(tmp_path, **chosen))[:2] == (directory, 1)

    (damaged,) = directory.glob("dorff.loops.rowwise._trig_rows-*")
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-100])
    _, hits, log = finish(start(tmp_path, **chosen))
    assert hits == 0 and "is damaged; compiling it anew" in log
    assert len(damaged.read_bytes()) >= len(whole) - 200
    assert finish(start(tmp_path, **chosen))[1] == 1


@pytest.mark.process
def test_falls_back_where_it_cannot_write_or_trust(tmp_path):
    (tmp_path / "home").write_text("a file where the home should be")
    (tmp_path / "tmp").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / f"dorff-{os.getuid()}").symlink_to(elsewhere)
    directory, _, log = finish(start(tmp_path, DORFF_CACHE_DIR=str(tmp_path / "open")))
    assert directory.parents[1] == tmp_path / "tmp"
    assert "is not a directory" in log
    assert not list(elsewhere.iterdir())


@pytest.mark.process
def test_works_without_any_place_to_keep_code(tmp_path):
    nowhere = "from dorff.loops import config; config._roots = lambda: []"
    code = USE.replace("out =", f"{nowhere}\n    out =")
    directory, hits, log = finish(start(tmp_path, code=code))
    assert (str(directory), hits) == ("None", 0)
    assert "set DORFF_CACHE_DIR" in log
    assert not list((tmp_path / "tmp").iterdir()) and not (tmp_path / "home").exists()


@pytest.mark.process
def test_a_full_disk_is_told_and_does_no_harm(tmp_path):
    code = "\n    import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))" + USE
    directory, hits, log = finish(start(tmp_path, code=code))
    assert hits == 0 and "cannot be kept" in log
    assert not list(directory.iterdir()), "nothing half-written stays"


def test_the_key_follows_the_sources(tmp_path):
    from dorff.loops.config import _key

    assert _key(tmp_path) == ""
    (tmp_path / "a.py").write_text("x = 1")
    before = _key(tmp_path)
    (tmp_path / "a.py").write_text("x = 2")
    assert _key(tmp_path) != before


def test_refuses_directories_of_others(tmp_path):
    from dorff.loops.config import _private

    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(OSError, match="other users"):
        _private(shared)
    with pytest.raises(OSError, match="absolute"):
        _private(Path("~/.cache"))
    if os.getuid() == 0:
        mine = tmp_path / "mine"
        mine.mkdir(mode=0o700)
        os.chown(mine, 12345, 12345)
        with pytest.raises(OSError, match="other users"):
            _private(mine)


@given(
    arrays(np.float64, st.tuples(st.integers(0, 9), st.integers(1, 5)), elements=st.floats(width=64)),
)
def test_scan_finds_bounds_and_what_is_not_finite(block):
    low, high = np.full(block.shape[1], np.inf), np.full(block.shape[1], -np.inf)
    finite = scan(block, low, high)
    assert finite == bool(np.isfinite(block).all())
    if finite and len(block):
        assert np.array_equal(low, block.min(axis=0)) and np.array_equal(high, block.max(axis=0))
