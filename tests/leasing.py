"""What the processes of test_lease do; imports little, since each imports it."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

from dorff.errors import LeaseError
from dorff.fit.publish import Verdict, publish
from dorff.spec.job import Publish
from dorff.store import LEASE, Lease


def contend(pipe: Connection, rounds: int) -> None:
    for _ in range(rounds):
        path = pipe.recv()
        try:
            lease = Lease.take(path)
        except LeaseError as error:
            pipe.send(str(error))
            continue
        pipe.send(lease.token)
        pipe.recv()  # held until all others have tried
        lease.check()
        lease.release()
        pipe.send("released")


def hold(pipe: Connection, path: Path, seconds: float) -> None:
    pipe.send(Lease.take(path, seconds=seconds).token)
    pipe.recv()


def late(pipe: Connection, root: Path) -> None:
    """Publishes; is paused while its model is judged."""
    from test_store import small_model

    def judge(version: Path, current: Path | None) -> Verdict:
        pipe.send(version.name)
        pipe.recv()
        return Verdict(1.0, None)

    lease = Lease.take(root / LEASE, seconds=1.2)
    try:
        publish(small_model(), root, lease=lease, rule=Publish(), record={"who": "late"}, judge=judge)
        pipe.send("published")
    except LeaseError as error:
        lease.release()
        pipe.send(str(error))
