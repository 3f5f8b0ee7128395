"""The guard of the quick tests."""

import multiprocessing
import os
import subprocess
import sys

import pytest
from distributed import LocalCluster

STARTERS = {
    "a command": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    "a child": lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
    "a fork": lambda: os.waitpid(os.fork() or os._exit(0), 0),
    "a shell": lambda: os.system("true"),
    "a cluster of threads": lambda: LocalCluster(n_workers=0, processes=False, dashboard_address=None).close(),
}


@pytest.mark.parametrize("name", STARTERS)
def test_a_quick_test_starts_nothing(name: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"test_quick.*starts a process or cluster .*: mark it `process`"):
        STARTERS[name]()


@pytest.mark.process
def test_a_marked_one_may() -> None:
    STARTERS["a command"]()
    STARTERS["a shell"]()
