"""What dorff asks of a bucket, and what it makes of the answers: who is believed about keys and endpoint, what each
refusal says, how long is waited, and that nothing is changed once another may hold the lock."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from between import BUSY, DENIED, HELD, LONG, STUCK, TRICKLED, Asked, Proxy
from distributed import Client, LocalCluster
from gateway import Gateway, credentials, free_port, make_bucket
from memory_storage import forget_all
from test_bucket_faults import done, ended, job, started, wait_for

from dorff.cli.metrics import of_fit
from dorff.cli.sentences import fit_text
from dorff.data import ingest, open_dataset, verify
from dorff.engine import Engine
from dorff.engine.dask import DaskEngine
from dorff.errors import InputError
from dorff.fit import fit
from dorff.plan import make_plan
from dorff.plan.costs import asked_of_buckets
from dorff.spec.job import Job
from dorff.storage.bucket import COUNTS, RefusedError, UnansweredError
from dorff.storage.location import Location, locate
from dorff.store import load_model, model_arrays

pytestmark = pytest.mark.process
LOCK = 4.0


def put(home: Location, content: bytes) -> None:
    with home.writing(sync=True) as file:
        file.write(content)


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An environment that says nothing of any storage, with a home of its own."""
    pytest.importorskip("obstore")
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DORFF_STORAGE_SECONDS", "0.3")
    forget_all()
    yield tmp_path
    forget_all()


@contextmanager
def echo() -> Iterator[str]:
    """A storage whose objects all hold who asks: key, region, token."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            key, _, region, *_ = self.headers["Authorization"].split("Credential=")[1].split("/")
            content = f"{key} {region} {self.headers.get('x-amz-security-token')}".encode()
            self.send_response(200)
            lines = {"Content-Length": len(content), "ETag": '"a"', "Last-Modified": "Thu, 26 Nov 2026 08:00:00 GMT"}
            for line in lines.items():
                self.send_header(*map(str, line))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Guarded:
    """A storage that takes one access key alone, and counts the requests that it refuses."""

    def __init__(self, refusal: tuple[int, str]) -> None:
        self.key, self.refused, guarded = "OLD", 0, self
        status, code = refusal

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                key = self.headers["Authorization"].split("Credential=")[1].split("/")[0]
                taken = key == guarded.key
                guarded.refused += not taken
                content = key.encode() if taken else f"<Error><Code>{code}</Code></Error>".encode()
                self.send_response_only(200 if taken else status)
                lines = {
                    "Content-Length": len(content),
                    "ETag": '"a"',
                    "Last-Modified": "Thu, 26 Nov 2026 08:00:00 GMT",
                }
                for line in lines.items():
                    self.send_header(*map(str, line))
                self.end_headers()
                self.wfile.write(content if self.command == "GET" else b"")

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Guarded:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def write_keys(home: Path, key: str, endpoint: str) -> None:
    (home / ".aws").mkdir(exist_ok=True)
    keys = f"aws_access_key_id = {key}\naws_secret_access_key = HUSH{key}\n"
    (home / ".aws" / "credentials").write_text(f"[default]\n{keys}")
    (home / ".aws" / "config").write_text(f"[default]\nendpoint_url = {endpoint}\n")


REFUSALS = [
    (403, "InvalidAccessKeyId"),
    (403, "SignatureDoesNotMatch"),
    (403, "AuthenticationFailed"),
    (401, "Unauthorized"),
    (400, "ExpiredToken"),
    (400, "InvalidToken"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=[code for _, code in REFUSALS])
def test_credentials_that_were_rotated_are_read_again(refusal: tuple[int, str], nobody: Path) -> None:
    with Guarded(refusal) as storage:
        write_keys(nobody, "OLD", storage.endpoint)
        assert locate("s3://b/k").read_bytes() == b"OLD"
        for key in ("NEW", "NEWEST"):
            storage.key, storage.refused = key, 0
            write_keys(nobody, key, storage.endpoint)
            assert locate("s3://b/k").stat().st_size == len(key)  # HEAD, whose answers have no code
            assert locate("s3://b/k").read_bytes() == key.encode()
            assert storage.refused == 1


@pytest.mark.parametrize("refusal", REFUSALS, ids=[code for _, code in REFUSALS])
def test_credentials_are_read_again_once(refusal: tuple[int, str], nobody: Path) -> None:
    with Guarded(refusal) as storage:
        write_keys(nobody, "OLD", storage.endpoint)
        assert locate("s3://b/k").read_bytes() == b"OLD"
        storage.key = "NEW"
        with pytest.raises(RefusedError) as caught:
            locate("s3://b/k").read_bytes()
        assert storage.refused == 2 and "OLD" not in str(caught.value)


@pytest.mark.parametrize("refusal", [(403, "RequestTimeTooSkewed"), (404, "NoSuchBucket"), (400, "InvalidRequest")])
def test_what_no_credentials_mend_is_asked_once(refusal: tuple[int, str], nobody: Path) -> None:
    with Guarded(refusal) as storage:
        write_keys(nobody, "NEW", storage.endpoint)
        with pytest.raises(RefusedError):
            locate("s3://b/k").read_bytes()
        assert storage.refused == 1


def test_the_environment_wins_over_the_files_and_they_fill_in_the_rest(
    nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nobody / ".aws").mkdir()
    keys = "aws_access_key_id = FILE\naws_secret_access_key = S\naws_session_token = T\n"
    (nobody / ".aws" / "credentials").write_text(f"[default]\n{keys}")
    own = {"AWS_ACCESS_KEY_ID": "OWN", "AWS_SECRET_ACCESS_KEY": "S"}
    with echo() as one, echo() as other:
        shut = "https://127.0.0.1:1"
        for of_file, environment, endpoint, answer in (
            (one, {}, one, "FILE eu-file T"),
            (one, {"AWS_ENDPOINT_URL": other}, other, "FILE eu-file T"),
            (shut, {"AWS_ENDPOINT_URL_S3": other}, other, "FILE eu-file T"),
            (shut, {"AWS_ENDPOINT": one, "AWS_DEFAULT_REGION": "eu-own"}, one, "FILE eu-own T"),
            (one, {"AWS_REGION": "eu-own"}, one, "FILE eu-own T"),
            (one, own, one, "OWN eu-file None"),
            (one, {**own, "AWS_ENDPOINT_URL": other, "AWS_REGION": "eu-own"}, other, "OWN eu-own None"),
            (one, {**own, "AWS_SESSION_TOKEN": "MINE"}, one, "OWN eu-file MINE"),
        ):
            (nobody / ".aws" / "config").write_text(f"[default]\nregion = eu-file\nendpoint_url = {of_file}\n")
            with monkeypatch.context() as patch:
                for name, value in environment.items():
                    patch.setenv(name, value)
                forget_all()
                assert locate("s3://b/k").read_bytes().decode() == answer, (environment, endpoint)
        # What is sent in the clear is what the environment's own endpoint says.
        monkeypatch.setenv("AWS_ENDPOINT_URL", one.replace("http", "https"))
        forget_all()
        with pytest.raises(UnansweredError):
            locate("s3://b/k").read_bytes()


@pytest.mark.parametrize(
    "key",
    [
        "credentials/x",
        "at/169.254.169.254",
        "Invalid range",
        "a status code: 404",
        "<Code>NoSuchBucket<",
        "x builder error",
    ],
)
def test_a_key_says_nothing_of_what_went_wrong(key: str, nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in credentials(endpoint := f"http://127.0.0.1:{free_port()}").items():
        monkeypatch.setenv(name, value)
    why = rf"the storage did not answer for 0\.3 s \(Connection refused, at {endpoint}\); run the same command again"
    with pytest.raises(UnansweredError, match=why):
        locate(f"s3://b/{key}").read_bytes()


@pytest.mark.parametrize(
    "endpoint", ["http://[::1]:1", "http://localhost:1/", "https://127.0.0.1:1/a/b", "http://a_b:1"]
)
def test_addresses_that_are_tried(endpoint: str, nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in credentials(endpoint).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnansweredError):
        locate("s3://b/k").read_bytes()


AWS, AZURE = "set AWS_ACCESS_KEY_ID", "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
GOOGLE = "set GOOGLE_APPLICATION_CREDENTIALS to"
ACCOUNT = {"AZURE_STORAGE_ACCOUNT_NAME": "a"}


@pytest.mark.parametrize(
    ("scheme", "environment", "sentence"),
    [
        ("s3", {"AWS_ENDPOINT_URL": "ftp://h:1"}, "got 'ftp://h:1'; correct AWS_ENDPOINT_URL, or the profile's"),
        ("s3", {"AWS_ENDPOINT_URL": "not a url"}, "wanted http://HOST:PORT or https://HOST, got 'not a url'"),
        ("s3", {"AWS_ENDPOINT_URL": "http://h:port"}, "got 'http://h:port'"),
        ("s3", {"AWS_ENDPOINT_URL": "http://me:hunter2hunter2@h"}, r"got 'http://\*\*\*@h'"),
        ("s3", {"AWS_ACCESS_KEY_ID": "A"}, f"Missing SecretAccessKey; {AWS}"),
        ("s3", {}, f"no credentials; {AWS}"),
        ("az", {}, f"Account must be specified; {AZURE}"),
        ("az", {**ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": "!"}, f"Invalid Access Key: .*; {AZURE}"),
        ("az", {**ACCOUNT, "AZURE_STORAGE_ENDPOINT": "not a url"}, "got 'not a url'; correct AZURE_STORAGE_ENDPOINT"),
        ("az", ACCOUNT, f"no credentials; {AZURE}"),
        ("gs", {"GOOGLE_APPLICATION_CREDENTIALS": "/none.json"}, f"Unable to open .* No such file .*; {GOOGLE}"),
        ("gs", {}, f"no credentials; {GOOGLE}"),
    ],
)  # fmt: skip
def test_what_is_set_up_wrong_is_one_sentence_at_once(
    scheme: str, environment: dict[str, str], sentence: str, nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DORFF_STORAGE_SECONDS", "1" if sentence.startswith("no cred") else "100")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"^{scheme}://b: .*{sentence}") as caught:
        locate(f"{scheme}://b/k").read_bytes()
    assert "\n" not in str(caught.value) and "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["DORFF_STORAGE_SECONDS", "DORFF_LOCK_SECONDS"])
@pytest.mark.parametrize("value", ["inf", "nan", "soon", "0", "-1", "1e9"])
def test_seconds_are_a_number(name: str, value: str, nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"^{name}: wanted seconds, above 0 and at most 86400, got '{value}'; correct"):
        locate("s3://b/k").read_bytes()


REFUSED = {
    "SignatureDoesNotMatch": ({"AWS_SECRET_ACCESS_KEY": "notitatall"}, "the secret is not that of the access key"),
    "InvalidAccessKeyId": ({"AWS_ACCESS_KEY_ID": "NOBODY"}, "the access key is unknown there"),
}


@pytest.mark.parametrize("code", REFUSED)
def test_each_refusal_has_its_own_sentence(code: str, bucket: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bucket / "a", b"1")
    environment, sentence = REFUSED[code]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    forget_all()
    calls = (bucket / "a").read_bytes, (bucket / "a").stat, bucket.exists, lambda: list(bucket.iterdir())
    for call in (*calls, lambda: put(bucket / "b", b"1"), (bucket / "a").unlink):
        with pytest.raises(RefusedError, match=f"^s3://tests: {sentence}"):
            call()


@pytest.mark.parametrize("what", ["s3:ListBucket", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"])
def test_what_the_bucket_forbids_is_one_sentence(what: str, gateway: Gateway, bucket: Location) -> None:
    """By a policy of the bucket; through the commands."""
    name = f"policy-{what[3:].lower()}"
    make_bucket(gateway, name)
    home = locate(f"s3://{name}/a")
    put(home / "file", b"1")
    denied = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": what,
        "Resource": [f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/*"],
    }
    gateway.asked("PUT", f"/{name}", "policy=", json.dumps({"Version": "2012-10-17", "Statement": [denied]}).encode())
    calls = {
        "s3:ListBucket": lambda: list(home.iterdir()), "s3:DeleteObject": lambda: home.remove_tree(),
        "s3:GetObject": (home / "file").read_bytes, "s3:PutObject": lambda: put(home / "more", b"1"),
    }  # fmt: skip
    with pytest.raises(RefusedError, match=f"^s3://{name}: access is denied; have the credentials allow reading, writ"):
        calls[what]()


@pytest.mark.parametrize("query", ["list-type=2", "?delete"])
def test_a_fit_that_may_not_list_or_delete_ends(query: str, gateway: Gateway, bucket: Location, tmp_path: Path) -> None:
    rows = some_rows(tmp_path)
    ingest([rows], bucket / "sea.zarr", inputs=["x"], targets=["y"])
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job(bucket)))
    with Proxy(gateway.port, lambda asked: DENIED if query in asked.path else "") as proxy:
        text = done("fit", file, code=3, **credentials(proxy.endpoint), DORFF_LOCK_SECONDS="4")
    assert text.startswith("dorff: s3://tests: access is denied; have the credentials allow") and text.count("\n") == 1


def some_rows(folder: Path, seed: int = 0, n: int = 3000) -> Path:
    X = np.random.default_rng(seed).uniform(-1, 1, (n, 2))
    np.savez(folder / f"rows{seed}.npz", x=X, y=np.sin(3 * X))
    return folder / f"rows{seed}.npz"


def through(proxy: Proxy, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    monkeypatch.setenv("DORFF_STORAGE_SECONDS", str(seconds))
    forget_all()


def test_a_storage_that_is_slow_or_stalls(gateway: Gateway, bucket: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    content = np.random.default_rng(0).bytes(20 * 2**20)
    put(bucket / "file", content)
    did: list[str] = []

    def rule(asked: Asked) -> str:
        if asked.number == 0:
            time.sleep(3)
        return did.pop() if did else ""

    with Proxy(gateway.port, rule) as proxy:
        through(proxy, 60, monkeypatch)
        assert (bucket / "file").read_bytes() == content  # answered after seconds
    with Proxy(gateway.port, lambda asked: did.pop() if did else "") as proxy:
        through(proxy, 3, monkeypatch)
        did[:] = [TRICKLED] * 9  # for longer than a request may be silent
        assert (bucket / "file").read_bytes() == content
        assert len(did) == 8
        did[:] = [STUCK]
        assert (bucket / "file").read_bytes() == content
        assert not did
        did[:] = [STUCK] * 20
        began = time.monotonic()
        with pytest.raises(UnansweredError, match="the storage did not answer for 3 s"):
            (bucket / "file").read_bytes()
        assert len(did) < 19 and time.monotonic() - began < 2 * LONG


def test_a_large_file_is_sent_over_a_slow_link(
    gateway: Gateway, bucket: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = np.random.default_rng(0).bytes(20 * 2**20 + 5)

    def rule(asked: Asked) -> str:
        time.sleep(asked.size / (2 * 2**20))  # four seconds for 8 MiB
        return ""

    with Proxy(gateway.port, rule) as proxy:
        through(proxy, 16, monkeypatch)
        put(bucket / "file", content)
    assert (bucket / "file").read_bytes() == content


MOVER = """
import sys
from dorff.storage.location import locate
of, to = map(locate, sys.argv[1:])
try:
    of.rename(to)
except OSError as error:
    print(type(error).__name__, error)
else:
    print("moved")
"""


@pytest.mark.parametrize("way", ["refused", "held up"])
def test_a_copy_that_is_late_lands_in_no_folder_of_another(
    way: str, gateway: Gateway, bucket: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moves; its copy of one file, and all that it asks later, is not done until B has moved its own there."""
    monkeypatch.setenv("DORFF_LOCK_SECONDS", str(LOCK))
    forget_all()
    for name in ("A", "B"):
        for file in ("a", "b"):
            put(bucket / name / file, name.encode())
    to, cut, over, seen = bucket / "to", threading.Event(), threading.Event(), list[Asked]()

    def rule(asked: Asked) -> str:
        if over.is_set():
            seen.append(asked)
            return ""
        if asked.copy and asked.path.endswith("/to/b"):
            cut.set()
            if way == "held up":
                over.wait(30)
                return HELD
        return BUSY if cut.is_set() else ""

    with (
        Proxy(gateway.port, rule) as proxy,
        started(
            "python", "-c", MOVER, bucket / "A", to,
            **credentials(proxy.endpoint), DORFF_LOCK_SECONDS=str(LOCK), DORFF_STORAGE_SECONDS="30",
        ) as late,
    ):  # fmt: skip
        assert cut.wait(60)
        assert to.status() is None  # type: ignore[attr-defined]
        (bucket / "B").rename(to)
        over.set()
        text = ended(late)
    assert {name: (to / name).read_bytes() for name in ("a", "b")} == {"a": b"B", "b": b"B"}, text
    assert text.startswith("UnansweredError") and "for 4 s, and another may write there now; run the same" in text
    assert not [asked for asked in seen if asked.copy] and not (bucket / "B").exists()
    assert {name: (bucket / "A" / name).read_bytes() for name in ("a", "b")} == {"a": b"A", "b": b"A"}


def test_an_append_that_is_paused_and_overtaken(gateway: Gateway, bucket: Location, tmp_path: Path) -> None:
    first, second, third = (some_rows(tmp_path, seed, 2000) for seed in range(3))
    store, running = bucket / "sea.zarr", list[Any]()
    words = ("--inputs", "x", "--targets", "y")
    ingest([first], store, inputs=["x"], targets=["y"], shard_rows=1024)

    def rule(asked: Asked) -> str:
        if asked.method == "PUT" and "partial" in asked.path and "/y/c/3/" in asked.path:
            running[0].send_signal(signal.SIGSTOP)
        return ""

    short = {"DORFF_LOCK_SECONDS": str(LOCK)}
    with (
        Proxy(gateway.port, rule) as proxy,
        started("ingest", second, store, *words, "--append", **credentials(proxy.endpoint), **short) as paused,
    ):
        running.append(paused)
        wait_for(lambda: any("/y/c/3/" in name for name in bucket.below()))  # type: ignore[attr-defined]
        done("ingest", third, store, *words, "--append", **short)
        paused.send_signal(signal.SIGCONT)
        out, err = paused.communicate(timeout=600)
    assert paused.returncode in (3, 5) and out == "" and "permissions" not in err
    overtaken = "another run has just written it; look at it|another may write there now; run the same"
    slow = "the storage did not answer for"  # of the gateway on a busy machine
    assert re.match(f"dorff: .*({overtaken}|{slow})", err)
    assert verify(store) == []
    now = open_dataset(store).read(0, 4000)[0]
    assert np.array_equal(now, np.concatenate([np.load(one)["x"] for one in (first, third)]))


def test_state_and_model_in_different_storages(gateway: Gateway, bucket: Location, tmp_path: Path) -> None:
    """Here and in a bucket, either way, and in two buckets: the model of folders, to the bit."""
    make_bucket(gateway, "others")
    other, rows, fitted = locate(f"s3://others/{bucket.name}"), some_rows(tmp_path), []
    places = {"here": locate(tmp_path), "there": bucket, "other": other}
    for data, state, model in (
        ("here", "here", "here"), ("there", "there", "here"), ("there", "here", "other"),
    ):  # fmt: skip
        home = {place: where / "-".join((data, state, model)) for place, where in places.items()}
        ingest([rows], home[data] / "sea.zarr", inputs=["x"], targets=["y"])
        wanted = job("") | {
            "data": {"store": str(home[data] / "sea.zarr")}, "state": str(home[state] / "s"), "model": str(home[model]),
        }  # fmt: skip
        report = fit(Job.model_validate(wanted))
        assert report.rows_used == 3000 and list((home[state] / "s").glob("*/receipts/*.json"))
        fitted.append({name: one.tobytes() for name, one in model_arrays(load_model(home[model])).items()})
    assert all(one == fitted[0] for one in fitted)


@pytest.mark.parametrize("which", ["data", "state", "model"])
def test_the_plan_says_what_is_asked_where_one_thing_is_in_a_bucket(
    which: str, bucket: Location, tmp_path: Path
) -> None:
    """Within a factor of 1.5."""
    place = {name: str((bucket if name == which else locate(tmp_path)) / name) for name in ("data", "state", "model")}
    ingest([some_rows(tmp_path, n=24_000)], place["data"], inputs=["x"], targets=["y"], shard_rows=1024)
    wanted = Job.model_validate(job("") | place | {"data": {"store": place["data"]}})
    planned = make_plan(wanted)
    words, before = asked_of_buckets(wanted, planned.dataset, planned.costs), COUNTS.copy()
    report = fit(wanted)
    did = COUNTS - before
    requests = sum(count for kind, count in did.items() if not kind.startswith("bytes"))
    assert 1 / 1.5 < requests / words["requests"] < 1.5, (did, words)
    counted = {"requests": requests, "bytes_read": did["bytes_in"], "bytes_written": did["bytes_out"]}
    assert report.buckets == counted
    assert f"; {requests:,} requests of buckets, " in fit_text(report)
    assert of_fit(report)["bucket_requests"] == requests


def test_the_report_counts_what_workers_ask_of_buckets(bucket: Location, tmp_path: Path) -> None:
    """Two processes ask about what one does for the same rows; two threads of one process say nothing twice."""
    ingest([some_rows(tmp_path, n=24_000)], bucket / "sea.zarr", inputs=["x"], targets=["y"], shard_rows=1024)

    def asked(name: str, engine: Engine | None = None, **cluster: object) -> dict[str, int]:
        paths = {"state": str(bucket / f"state-{name}"), "model": str(bucket / f"model-{name}")}
        wanted = Job.model_validate(job(bucket) | paths | {"cluster": cluster or {"type": "serial"}})
        return fit(wanted, engine=engine).buckets

    alone, inside = asked("alone"), {"processes": False, "dashboard_address": None}
    with LocalCluster(n_workers=1, threads_per_worker=2, **inside) as there, Client(there) as client:
        threads = asked("threads", DaskEngine(client))
    workers = asked("workers", type="local", workers=2, memory="1GiB", small_jobs="workers")
    for others in (threads, workers):
        assert set(others) == set(alone)
        assert all(0.9 < count / alone[kind] < 1.2 for kind, count in others.items()), (others, alone)
