"""The schedules in deploy/: the cron line is run as cron would run it, with a stand-in for dorff; the commands of all
are understood by dorff. Kubernetes has tests of its own, in tests/kubernetes."""

import configparser
import re
import subprocess
from pathlib import Path

import pytest
from command_line import call
from places import ROOT

DEPLOY = ROOT / "deploy"
CODES = set(range(8))
AGAIN = {5, 7}  # incomplete; held by another job that shares the state or the model

# Ends with the next code of its list, and writes down what it was called with.
STAND_IN = """\
#!/bin/sh
echo "$@" >>calls
code=$(head -n 1 codes)
sed -i 1d codes
[ "$code" = kill ] && kill -9 $$
exit "$code"
"""


def crontab() -> tuple[dict[str, str], str]:
    """The settings of the cron table, and the command of its one line."""
    lines = [line for line in (DEPLOY / "crontab").read_text().splitlines() if line and not line.startswith("#")]
    settings = dict(line.split("=", 1) for line in lines[:-1])
    when, command = lines[-1].split(" * * * ")
    assert re.fullmatch(r"\d+ \d+", when)
    assert "%" not in command  # cron would read a newline
    return settings, command


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    parser.read_string((DEPLOY / "systemd" / name).read_text())
    return parser


@pytest.mark.process
@pytest.mark.parametrize(
    ("codes", "calls", "last"),
    [
        (["0"], 1, 0),
        (["5", "5", "0"], 3, 0),
        (["kill", "0"], 2, 0),
        (["5", "3"], 2, 3),
        (["5"] * 9, 5, 5),
        (["7", "5", "7", "0"], 4, 0),
        (["7"] * 9, 5, 7),
        *(([str(code)], 1, code) for code in sorted(CODES - {0, *AGAIN})),
    ],
)
def test_the_cron_line_runs_again_what_is_incomplete_or_held(
    tmp_path: Path, codes: list[str], calls: int, last: int
) -> None:
    settings, command = crontab()
    stand_in = tmp_path / "a folder" / "dorff"
    stand_in.parent.mkdir()
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    (tmp_path / "codes").write_text("\n".join(codes) + "\n")
    log = tmp_path / "the log"
    settings |= {"DORFF": str(stand_in), "PAUSE": "0", "LOG": str(log), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [settings["SHELL"], "-c", command], env=settings, cwd=tmp_path, capture_output=True, timeout=600, check=False
    )
    assert done.returncode == last
    assert done.stdout == done.stderr == b""  # cron mails whatever is printed
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"fit {settings['JOB']} --metrics {settings['METRICS']}"
    ] * calls
    assert log.exists()


def test_the_service_runs_again_exactly_what_is_incomplete_or_held() -> None:
    service = unit("dorff-fit@.service")["Service"]
    settings, _ = crontab()
    command = service["ExecStart"].split()
    job = settings["JOB"].replace("/sea/", "/%i/")
    metrics = settings["METRICS"].replace("/sea.", "/%i.")
    assert command == [settings["DORFF"], "fit", job, "--root", str(Path(job).parent), "--metrics", metrics]
    assert service["Type"] == "oneshot" and service["Restart"] == "on-failure"
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == CODES - {0, *AGAIN}
    assert "SuccessExitStatus" not in service  # what has not failed is not run again
    assert service["Environment"] == "DORFF_LOG=json" == f"DORFF_LOG={settings['DORFF_LOG']}"


def test_the_timer_makes_up_for_a_missed_night() -> None:
    timer = unit("dorff-fit@.timer")
    assert timer["Timer"]["Persistent"] == "true"
    assert timer["Install"]["WantedBy"] == "timers.target"


@pytest.mark.process
@pytest.mark.parametrize("code", [*map(str, sorted(CODES)), "kill"])
def test_the_driver_job_leaves_the_next_try_where_the_fit_is_incomplete_or_held(tmp_path: Path, code: str) -> None:
    """With stand-ins for Slurm's commands, whose real ones are in tests/slurm: 42 is the next try."""
    (tmp_path / "codes").write_text(f"{code}\n")
    stand_ins = {"dorff": STAND_IN, "sbatch": '#!/bin/sh\necho "$@" >>next\necho 42\n'}
    stand_ins["scancel"] = '#!/bin/sh\necho "$@" >>cancelled\n'
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    script = DEPLOY / "slurm" / "driver.sbatch"
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "DORFF": "dorff", "PAUSE": "0", "JOB": "a b.yaml"}
    env["SLURM_JOB_ID"] = "41"
    done = subprocess.run(["/bin/bash", script], env=env, cwd=tmp_path, capture_output=True, timeout=600, check=False)
    assert done.returncode == (137 if code == "kill" else int(code)), done.stderr
    assert (tmp_path / "calls").read_text() == "fit a b.yaml\n"
    asked = f"--parsable --export=ALL,TRY=2 --dependency=afternotok:41 --kill-on-invalid-dep=yes {script}\n"
    assert (tmp_path / "next").read_text() == asked
    cancelled = (tmp_path / "cancelled").read_text() if (tmp_path / "cancelled").exists() else ""
    again = code == "kill" or int(code) in {0, *AGAIN}  # after 0 Slurm removes it
    assert cancelled == ("" if again else "42\n")


def test_slurms_cron_has_the_line_that_cron_has() -> None:
    lines = (DEPLOY / "slurm" / "scrontab").read_text().splitlines()
    (line,) = [line for line in lines if line and not line.startswith("#")]
    assert f"#   {line}" in lines and all(one.startswith(("# ", "#SCRON --")) or one in ("#", line) for one in lines)
    assert re.fullmatch(r"\d+ \d+ \* \* \* sbatch --dependency=singleton /\S+/driver.sbatch", line)


@pytest.mark.parametrize("schedule", ["cron", "systemd"])
def test_dorff_understands_the_commands(schedule: str) -> None:
    """All that it minds is that the files are not there."""
    settings, command = crontab()
    words = {
        "cron": ["fit", settings["JOB"], "--metrics", settings["METRICS"]],
        "systemd": unit("dorff-fit@.service")["Service"]["ExecStart"].split()[1:],
    }[schedule]
    assert '"$DORFF" fit "$JOB" --metrics "$METRICS";' in command
    words[words.index("--metrics") + 1] = "no-such-folder/sea.prom"
    done = call("--log", settings["DORFF_LOG"], *words)
    assert done.exit_code == 3 and "in a folder that is there" in done.stderr


def test_every_exit_code_is_explained() -> None:
    rows = re.findall(r"^\| (\d) \|", (DEPLOY / "README.md").read_text(), flags=re.MULTILINE)
    assert [int(row) for row in rows] == sorted(CODES)


def test_the_readme_says_which_codes_are_run_again() -> None:
    rows = re.findall(r"^\| (\d) \|.*\| (.*) \|$", (DEPLOY / "README.md").read_text(), flags=re.MULTILINE)
    assert {int(code) for code, done in rows if done.startswith("run ")} == AGAIN
