"""Fits whose workers are jobs of a real Slurm: the same bits as a local fit's, whatever becomes of the jobs; what is
refused; and no job that stays."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pytest
from command_line import CURL, DORFF, field, run, write_job
from places import ROOT
from slurm_nodes import Slurm, slurm_nodes, until
from table import Trial

from dorff.data import ingest
from dorff.storage.files import read_record
from dorff.store import load_model

pytestmark = pytest.mark.process
LEAVES = 4
COUNT = 2000  # features: a leaf takes some seconds
ROWS = LEAVES * 16384


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_nodes() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of four leaves, and a job that fits it here."""
    folder = tmp_path_factory.mktemp("data")
    np.save(folder / "rows.npy", field(ROWS))
    ingest([folder / "rows.npy"], folder / "sea.zarr", inputs=["c0", "c1"], targets=["c2", "c3"])
    write_job(folder / "job.yaml", kernel=CURL, features={"count": COUNT})
    return folder


class Place:
    """A folder with a job of Slurm's."""

    def __init__(self, folder: Path, data: Path, slurm: Slurm, trial: Trial) -> None:
        self.folder, self.data, self.slurm, self.trial = folder, data, slurm, trial
        self.environment = os.environ | slurm.environment
        self.started: list[subprocess.Popen[str]] = []

    def job(self, type: str = "slurm", **cluster: Any) -> None:
        usual = {"workers": 2, "memory": "600MiB", "wait": 600.0} if type == "slurm" else {}
        there = {"type": type, "interface": "lo"} | usual | cluster
        store = str(self.data / "sea.zarr")
        write_job(
            self.folder / "job.yaml", data={"store": store}, kernel=CURL, features={"count": COUNT}, cluster=there
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            words or [DORFF, "fit", "job.yaml", "--json"], cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.started.append(started)
        return started

    def fit(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return run("fit", "job.yaml", "--json", cwd=self.folder, env=self.environment | environment)

    def until(self, true: Callable[[], object]) -> None:
        """Wait for what a fit does, while it does anything: why it ended is printed in the end."""

        def true_in_time() -> object:
            ended = any(fitted.poll() is not None for fitted in self.started)
            there = true()
            assert there or not ended, "the fit has ended"
            return there

        until(true_in_time)

    def checkpoint(self) -> dict[str, Any]:
        """What a leaf left that was ended at a block, as soon as it is there."""
        self.until(lambda: list(self.folder.glob("runs/sea/*/checkpoints/*.json")))
        return record(next(self.folder.glob("runs/sea/*/checkpoints/*.json")))

    def taken_up(self, checkpoint: dict[str, Any]) -> str:
        """Another worker went on from there, reading the rows that were left, and no others. What was read again."""
        (receipt,) = [one for one in map(record, self.receipts()) if one["number"] == checkpoint["number"]]
        rest = checkpoint["stop"] - checkpoint["row"]
        assert checkpoint["rows_read"] + rest == receipt["rows_read"]
        assert 0 < rest < checkpoint["stop"] - checkpoint["start"]
        return f"{receipt['rows_read'] - (checkpoint['stop'] - checkpoint['start'])} rows read"

    def processes(self, job: str, word: str = "dask_worker") -> list[psutil.Process]:
        """Those of a job, but not Slurm's own: of a worker's the nanny, and then the worker."""
        there = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("SLURM_JOB_ID") == job and word in " ".join(process.cmdline()):
                    there += [process, *process.children(recursive=True)]
        return there

    def receipts(self) -> list[Path]:
        return list(self.folder.glob("runs/sea/*/receipts/*.json"))

    def empty(self) -> None:
        """No job stays, nor credentials."""
        until(lambda: not self.slurm.jobs())
        assert not list(self.folder.glob("slurm/*/*.pem"))

    def check(
        self,
        fitted: subprocess.Popen[str],
        fault: str = "",
        redone: Callable[[dict[str, Any]], str] = lambda report: "not counted",
    ) -> dict[str, Any]:
        """That the fit is that of all rows, its model is that of a fit here to the last bit, and no job stays."""
        out, err = fitted.communicate(timeout=600)
        assert fitted.returncode == 0, err
        report: dict[str, Any] = json.loads(out)
        self.settle(fault, redone(report))
        assert report["rows_used"] == ROWS and report["rows_dropped"] == 0 and report["coverage"] == 1
        assert report["leaves_computed"] + report["leaves_reused"] == LEAVES
        assert list(self.folder.glob("slurm/*")) == []
        return report

    def settle(self, fault: str, redone: str = "not counted") -> None:
        """What the fault came to: the model of a fit here, to the last bit; and no job stays."""
        used = load_model(self.folder / "models" / "sea").info["report"]["rows_used"]
        self.trial.settle(fault, rows=(ROWS, used), same=self.same(), left=self.jobs_left, redone=redone)
        self.empty()

    def jobs_left(self) -> int:
        return len(self.slurm.jobs())

    def same(self) -> bool:
        """Whether the model is that of a fit here, to the last bit."""
        if not (self.data / "models").exists():
            here = run("fit", "job.yaml", cwd=self.data)
            assert here.returncode == 0, here.stderr
        first, second = (folder / "models" / "sea" / "v000001" for folder in (self.data, self.folder))
        chunks = [file.relative_to(first) for file in first.rglob("c/*") if file.is_file()]
        chunks += [file.relative_to(first) for file in first.rglob("c/*/*") if file.is_file()]
        assert len(chunks) > 3
        return all((first / chunk).read_bytes() == (second / chunk).read_bytes() for chunk in chunks)


def record(file: Path) -> dict[str, Any]:
    body = read_record(file)
    assert body is not None
    return body


@pytest.fixture
def place(tmp_path: Path, data: Path, slurm: Slurm, trial: Trial) -> Iterator[Place]:
    slurm.resume_nodes()
    made = Place(tmp_path, data, slurm, trial)
    yield made
    print(slurm.describe())  # which pytest shows of a test that failed
    for fitted in made.started:
        fitted.kill()
        print(*fitted.communicate(), sep="\n")
    slurm.call("scancel", *slurm.jobs()) if slurm.jobs() else None
    until(lambda: not slurm.jobs())


def test_the_model_is_that_of_a_fit_here_to_the_last_bit(place: Place) -> None:
    place.job()
    fitted = place.start()
    place.until(place.slurm.jobs)
    keys = list(place.folder.glob("slurm/*/key.pem"))
    assert [key.stat().st_mode & 0o777 for key in keys] == [0o600]
    assert [key.parent.stat().st_mode & 0o777 for key in keys] == [0o700]
    report = place.check(fitted)
    assert report["leaves_computed"] == LEAVES and not report["in_driver"]


def test_a_job_asks_slurm_for_what_it_says(place: Place) -> None:
    """And the keys are where it says, seen from the job's folder."""
    asked = {"workers": 3, "memory": "3GiB", "walltime": "1-02:30:00", "account": "sea", "directives": ["--nice=7"]}
    place.job(**asked, folder="shared", queue="closed", wait=4.0)
    fitted = place.start()
    place.until(lambda: len(place.slurm.jobs()) == 3)
    shown = place.slurm.call("scontrol", "show", "job", place.slurm.jobs()[0])
    assert "TimeLimit=1-02:30:00" in shown and "Account=sea" in shown and "mem=3G" in shown, shown
    for word in ("NumCPUs=1", "Nice=7", "Partition=closed", "Requeue=0"):
        assert word in shown, shown
    (key,) = place.folder.glob("shared/dorff-*/key.pem")
    here = [one.laddr.ip for one in psutil.Process(fitted.pid).net_connections("tcp") if one.status == "LISTEN"]
    assert set(here) == {"127.0.0.1"}, "the interface lo"
    fitted.communicate(timeout=600)
    assert fitted.returncode == 5 and not key.exists()
    place.empty()


def computing(place: Place) -> str:
    """The id of a job that computes a leaf."""
    place.until(place.receipts)
    time.sleep(0.5)
    return place.slurm.jobs("--states=RUNNING")[0]


@pytest.mark.slow
def test_a_job_that_is_cancelled_is_replaced_and_its_leaf_goes_on(place: Place) -> None:
    place.job(workers=1)  # of two, the one that is cancelled might not have begun
    fitted = place.start()
    lost = computing(place)
    place.slurm.call("scancel", lost)
    checkpoint = place.checkpoint()
    place.until(lambda: place.slurm.jobs("--states=RUNNING") not in ([], [lost]))
    place.check(fitted, "job cancelled (scancel)", lambda _: place.taken_up(checkpoint))


@pytest.mark.slow
def test_a_worker_ends_before_its_walltime_and_its_leaf_goes_on(place: Place) -> None:
    """It is held up, so that its leaf is not done when its time is: 160 s after its start, or a tenth less."""
    place.job(workers=1, walltime="00:03:00")
    fitted = place.start()
    job = computing(place)
    began = place.processes(job)[0].create_time()
    place.until(lambda: place.processes(job, "spawn_main"))
    worker = place.processes(job, "spawn_main")[0]  # not a child that is soon gone
    worker.suspend()
    until(lambda: time.time() - began > 157)
    worker.resume()
    checkpoint = place.checkpoint()
    place.until(lambda: place.slurm.jobs("--states=RUNNING") not in ([], [job]))
    assert time.time() - began < 180, "Slurm would have killed it"
    place.check(fitted, "walltime near its end", lambda _: place.taken_up(checkpoint))


EATER = """\
mkdir eaten 2>/dev/null && (
until ls runs/sea/*/receipts/*.json >/dev/null 2>&1; do sleep 0.2; done
exec python3 -c "import time; held = bytearray(b'1') * 10**9; time.sleep(60)"
) &
"""


@pytest.mark.slow
def test_a_job_that_slurm_kills_for_its_memory_is_replaced(place: Place) -> None:
    place.job(workers=1)  # more leaves are left than it has time for
    (place.folder / "eater").write_text(EATER)
    place.environment["BASH_ENV"] = str(place.folder / "eater")  # what the job's shell does first
    fitted = place.start()
    logs = list(place.slurm.folder.glob("slurmd.*.log"))
    place.until(lambda: any("exceeded memory limit" in log.read_text() for log in logs))
    place.check(fitted, "job killed for its memory")


@pytest.mark.slow
def test_a_node_that_goes_down_loses_nothing(place: Place) -> None:
    place.job()
    fitted = place.start()
    job = computing(place)
    node = place.slurm.call("squeue", "-h", "-j", job, "-o", "%N").strip()
    place.slurm.kill(f"slurmd.{node}")
    for one in place.processes(job):
        with suppress(psutil.NoSuchProcess):
            one.kill()
    place.slurm.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        place.check(fitted, "node down")
    finally:
        place.slurm.start(f"slurmd.{node}")
        # It may be back by itself, and is not resumed then.
        place.slurm.call("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        until(place.slurm.idle)


@pytest.mark.slow
def test_a_controller_that_is_away_is_waited_for(place: Place) -> None:
    """Its one job is lost meanwhile: it is replaced when the controller is back. A controller that is killed before it
    has saved that a job runs would give its number to another one, and the node would be drained for that."""
    place.job(workers=1)
    fitted = place.start()
    job = computing(place)
    began = place.processes(job)[0].create_time()
    saved = place.slurm.folder / "state" / "job_state"
    until(lambda: saved.exists() and saved.stat().st_mtime > began)
    place.slurm.kill("slurmctld")
    for one in place.processes(job):
        with suppress(psutil.NoSuchProcess):
            one.kill()
    time.sleep(3)
    place.slurm.start("slurmctld")
    place.check(fitted, "slurmctld killed and started again, a job lost meanwhile")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_job_stays_however_the_driver_ends(place: Place, number: signal.Signals) -> None:
    place.job()
    fitted = place.start()
    computing(place)
    fitted.send_signal(number)
    _, err = fitted.communicate(timeout=600)
    if number != signal.SIGKILL:
        assert fitted.returncode == 5 and err.splitlines()[-1].startswith("dorff: stopped; what is done is kept"), err
        place.empty()
    until(lambda: not place.slurm.jobs())
    for folder in place.folder.glob("slurm/*"):  # what a killed driver leaves
        shutil.rmtree(folder)
    before = len(place.receipts())
    report = place.check(
        place.start(),
        f"driver ended by {number.name}, run again",
        lambda report: f"{before - report['leaves_reused']} leaves that were done",
    )
    assert report["leaves_reused"] == before >= 1


PROGRESS: Final = r"\d\d:\d\d:\d\d fit: |cluster: Slurm's jobs wait \("  # what is no error


def refused(place: Place, fault: str, code: int, pattern: str, **environment: str) -> None:
    """The fit ends with this code and one sentence, and no job stays."""
    done = place.fit(**environment)
    lines = [line for line in done.stderr.splitlines() if not re.match(PROGRESS, line)]
    assert done.returncode == code and len(lines) == 1, done.stderr
    assert re.search(pattern, lines[0]), lines[0]
    place.trial.settle(fault, f"exit {code} and one sentence", left=place.jobs_left)
    place.empty()


def test_without_slurm_there_is_no_fit(place: Place) -> None:
    place.job()
    refused(place, "no sbatch", 3, "there is no sbatch here; run dorff where Slurm's commands are", PATH="/nowhere")


def commands(place: Place, **scripts: str) -> str:
    """A PATH on which these scripts come before Slurm's commands of their names, which they call."""
    there = place.folder / "commands"
    there.mkdir()
    for name, lines in scripts.items():
        (there / name).write_text(f"#!/bin/sh\n{lines}\n")
        (there / name).chmod(0o755)
    return f"{there}:{os.environ['PATH']}"


def test_jobs_go_whatever_the_environment_says(place: Place) -> None:
    """Of jobs, of their queue and of their end; and SBATCH_ACCOUNT is where they go if the job does not say."""
    place.environment |= {"SBATCH_JOB_NAME": "mine", "SBATCH_REQUEUE": "1", "SBATCH_TIMELIMIT": "3", "SBATCH_WAIT": "1"}
    place.environment |= {"SBATCH_ARRAY_INX": "1-3", "SBATCH_OUTPUT": "/nowhere/x", "SCANCEL_STATE": "SUSPENDED"}
    place.environment |= {"SQUEUE_STATES": "RUNNING", "SQUEUE_FORMAT": "%j", "SBATCH_ACCOUNT": "sea"}
    place.job(workers=8)  # nodes have two cores each, for now all wait
    for node in ("n1", "n2", "n3"):
        place.slurm.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    try:
        fitted = place.start()
        place.until(lambda: len(place.slurm.jobs()) == 8)
        time.sleep(5)  # it looks at the queue, twice
        assert len(place.slurm.jobs()) == 8, "jobs that wait are seen"
        shown = place.slurm.call("scontrol", "show", "job", place.slurm.jobs()[0])
        for word in ("JobName=dorff-", "Requeue=0", "TimeLimit=01:00:00", f"StdOut={place.folder}/slurm/dorff-"):
            assert word in shown, shown
        assert "Account=sea" in shown and "ArrayJobId" not in shown
        fitted.send_signal(signal.SIGTERM)
        _, err = fitted.communicate(timeout=600)
        assert fitted.returncode == 5, err
        place.empty()
    finally:
        for node in ("n1", "n2", "n3"):
            place.slurm.call("scontrol", "update", f"NodeName={node}", "State=RESUME")


def test_a_signal_while_jobs_are_asked_for_leaves_none(place: Place) -> None:
    """Asking for all of them would take longer than a process has after a signal."""
    place.job(workers=40)
    sbatch = f'sleep 1; exec {shutil.which("sbatch")} "$@"'
    fitted = place.start("env", f"PATH={commands(place, sbatch=sbatch)}", DORFF, "fit", "job.yaml")
    place.until(lambda: len(place.slurm.jobs()) >= 2)
    fitted.send_signal(signal.SIGTERM)
    began = time.monotonic()
    _, err = fitted.communicate(timeout=600)
    assert fitted.returncode == 5 and "what is done is kept" in err, err
    assert time.monotonic() - began < 300
    place.empty()


@pytest.mark.slow
def test_a_signal_that_comes_twice_leaves_no_job(place: Place) -> None:
    """The second one while jobs are cancelled, which takes a while; those that wait cannot start and end instead."""
    place.job(workers=4, directives=["--nodelist=n1"])
    scancel = f'echo "$@" >>{place.folder}/called; sleep 2; exec {shutil.which("scancel")} "$@"'
    fitted = place.start("env", f"PATH={commands(place, scancel=scancel)}", DORFF, "fit", "job.yaml")
    computing(place)
    place.slurm.call("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test")
    try:
        fitted.send_signal(signal.SIGTERM)
        place.until((place.folder / "called").exists)
        fitted.send_signal(signal.SIGTERM)
        _, err = fitted.communicate(timeout=600)
        assert fitted.returncode == 5, err
        place.empty()
    finally:
        place.slurm.call("scontrol", "update", "NodeName=n1", "State=RESUME")


def test_an_interrupt_while_jobs_wait_is_no_bug(place: Place) -> None:
    place.job(queue="closed", wait=600.0)
    fitted = place.start()
    assert fitted.stderr and fitted.stderr.readline() == "cluster: Slurm's jobs wait (PartitionDown)\n"
    assert len(place.slurm.jobs()) == 2
    fitted.send_signal(signal.SIGINT)
    _, err = fitted.communicate(timeout=600)
    assert fitted.returncode == 5, err
    place.trial.settle("driver interrupted while jobs wait", "exit 5", left=place.jobs_left)
    place.empty()


def test_jobs_that_cannot_be_cancelled_are_named(place: Place) -> None:
    place.job(queue="closed", wait=3.0)
    done = place.fit(PATH=commands(place, scancel="echo no permission >&2; exit 1"))
    jobs = " ".join(place.slurm.jobs())
    assert done.returncode == 5 and len(jobs.split()) == 2
    assert f"jobs may be left: scancel {jobs} (no permission)\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interface_that_is_not_there_is_named(place: Place) -> None:
    place.job(interface="nope0")
    refused(
        place,
        "no such interface",
        3,
        r"cluster.interface nope0: \S+ has none of that name with an IPv4 address; name one of .*lo",
    )


def test_a_python_whose_path_has_a_space_works(place: Place) -> None:
    place.job()
    python = place.folder / "a python"
    shutil.copytree(Path(DORFF).parents[1], python, symlinks=True, ignore=shutil.ignore_patterns("lib", "lib64"))
    for name in ("lib", "lib64"):
        (python / name).symlink_to(Path(DORFF).parents[1] / "lib")
    words = [str(python / "bin" / "python"), "-c", "from dorff.cli import main; main()", "fit", "job.yaml", "--json"]
    place.check(place.start(*words))


def test_what_sbatch_says_is_passed_on(place: Place) -> None:
    place.job(queue="nowhere")
    refused(place, "unknown queue", 3, "sbatch refuses the job: .*[Ii]nvalid partition.*; correct")
    place.job(directives=["--nodelist=n9"])
    refused(place, "unknown node", 3, "sbatch refuses the job: .*[Ii]nvalid node")


def test_a_queue_that_starts_nothing_ends_the_fit_with_its_reason(place: Place) -> None:
    place.job(queue="closed", wait=3.0)
    pattern = r"none of Slurm's jobs has run for 3 s, and its reason is PartitionDown; what is done is kept"
    refused(place, "queue that starts nothing", 5, pattern)


def test_a_walltime_beyond_the_queues_is_not_waited_for(place: Place) -> None:
    place.job(queue="short", wait=300.0)
    refused(place, "walltime beyond the queue's", 3, r"its jobs can never run here \(PartitionTimeLimit\); lower")


def test_jobs_that_die_at_once_are_not_asked_for_for_ever(place: Place) -> None:
    place.job()
    (place.folder / "broken").write_text("echo no python on this node >&2; exit 1")
    pattern = r"jobs of Slurm's in a row ended soon after they began; .*\(the last line: no python on this node\)"
    refused(place, "nodes on which each job fails", 5, pattern, BASH_ENV=str(place.folder / "broken"))
    assert list(place.folder.glob("slurm/*/*.err")), "what they printed is kept"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no MPI: apt-get install openmpi-bin libopenmpi-dev")
@pytest.mark.parametrize(
    "launcher",
    [
        "srun --mpi=pmix --nodes=1 --ntasks=3 --overcommit",
        "salloc --nodes=1 --ntasks=3 --overcommit mpirun -n 3 --oversubscribe --allow-run-as-root",
    ],
)
def test_the_processes_of_an_allocation_fit_by_mpi(place: Place, launcher: str) -> None:
    place.job(type="mpi", memory="1GiB")
    fitted = place.start(*launcher.split(), DORFF, "fit", "job.yaml", "--json")
    assert place.check(fitted)["leaves_computed"] == LEAVES


def submit(place: Place, dorff: str, *options: str, tries: int = 5, job: str = "job.yaml") -> None:
    """The script of deploy/, its placeholders changed, as the first of some tries."""
    text = (ROOT / "deploy" / "slurm" / "driver.sbatch").read_text()
    for placeholder, value in (
        ("/opt/dorff/.venv/bin/dorff", dorff),
        ("/srv/dorff/sea/job.yaml", str(place.folder / job)),
        ("--mem=8G", "--mem=1G"),
    ):
        assert placeholder in text
        text = text.replace(placeholder, value)
    (place.folder / "driver.sbatch").write_text(text)
    environment = place.environment | {"TRIES": str(tries), "PAUSE": "0"}
    subprocess.run(["sbatch", *options, "driver.sbatch"], cwd=place.folder, env=environment, check=True, timeout=600)


# Ends with the next code of its list, and writes down what it was called with.
STAND_IN = """\
#!/bin/sh
cd "$(dirname "$0")"
echo "$@" >>calls
code=$(head -n 1 codes)
sed -i 1d codes
[ "$code" = killed ] && kill -9 $$
[ "$code" = lost ] && kill -9 $PPID && sleep 60
exit "$code"
"""


@pytest.mark.parametrize(
    ("codes", "calls", "export"),
    [
        (["5", "7", "0"], 3, "ALL"),
        (["killed", "lost", "0"], 3, "ALL"),
        (["3"], 1, "ALL"),
        (["5"] * 9, 5, "ALL"),
        (["5"] * 9, 5, "NONE"),
    ],
    ids=["incomplete or held", "killed, and the script with it", "bad input", "never done", "a site exports nothing"],
)
def test_a_driver_that_is_a_job_is_tried_again_until_it_is_done(
    place: Place, codes: list[str], calls: int, export: str
) -> None:
    place.environment["SBATCH_EXPORT"] = export
    stand_in = place.folder / "dorff"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    (place.folder / "codes").write_text("\n".join(codes) + "\n")
    submit(place, str(stand_in), "--export=ALL")
    until(lambda: not place.slurm.jobs())
    assert (place.folder / "calls").read_text().splitlines() == [f"fit {place.folder / 'job.yaml'}"] * calls


#: Is incomplete once for each job file.
ONCE = """\
#!/bin/sh
echo "$2" >>"$(dirname "$0")/calls"
mkdir "$2.once" 2>/dev/null && exit 5
exit 0
"""


def test_each_task_of_an_array_has_its_own_job_file_and_tries(place: Place) -> None:
    stand_in = place.folder / "dorff"
    stand_in.write_text(ONCE)
    stand_in.chmod(0o755)
    submit(place, str(stand_in), "--array=1-2", job="%a.yaml")
    until(lambda: not place.slurm.jobs())
    files = [str(place.folder / f"{number}.yaml") for number in (1, 1, 2, 2)]
    assert sorted((place.folder / "calls").read_text().splitlines()) == files


@pytest.mark.slow
@pytest.mark.parametrize("signal_name", ["TERM", "KILL"])
def test_a_fit_whose_driver_is_cut_short_is_ended_by_the_next_try(place: Place, signal_name: str) -> None:
    """TERM is what Slurm says before the walltime; KILL is the end of all processes of the job, as of a lost node."""
    place.job()
    submit(place, DORFF)
    computing(place)
    driver = place.slurm.jobs("--name=dorff-sea", "--states=RUNNING")[0]
    if signal_name == "TERM":
        place.slurm.call("scancel", "--batch", "--signal=TERM", driver)
    else:
        for one in place.processes(driver, ""):
            one.kill()
        for folder in place.folder.glob("slurm/*"):  # what a killed driver leaves
            shutil.rmtree(folder)
    until(lambda: not place.slurm.jobs())
    logs = sorted(place.folder.glob("dorff-sea-*.log"), key=lambda log: int(log.stem.rpartition("-")[2]))
    assert len(logs) == 2
    assert ("what is done is kept" in logs[0].read_text()) == (signal_name == "TERM")
    place.settle(f"driver's job ended by {signal_name}, submitted again by itself")
    assert f"fit: {ROWS:,} rows used, 0 dropped; " in logs[1].read_text()
