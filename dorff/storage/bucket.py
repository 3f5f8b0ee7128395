"""A bucket of an object storage, by the library obstore: what is asked of it, how often, and what its answers mean."""

import configparser
import errno
import io
import os
import random
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from dorff.errors import DorffError, IncompleteError, InputError
from dorff.errors.secrets import carries_secret, redact
from dorff.errors.stopping import stop_requested


def _seconds_of(variable: str) -> float:
    """What the environment says, or 30. InputError where that is no number above 0, a day's at most."""
    with suppress(ValueError):
        if 0 < (given := float(os.environ.get(variable, 30))) <= 86400:
            return given
    raise InputError(f"{variable}: wanted seconds, above 0 and at most 86400, got {os.environ[variable]!r}; correct it")


patience: Final = partial(_seconds_of, "DORFF_STORAGE_SECONDS")  # for which requests that fail are tried again
stale: Final = partial(_seconds_of, "DORFF_LOCK_SECONDS")  # after which a lock that is not renewed is nobody's
# Parts of the latter: a renewal is sent after each RENEWED. What is changed under a lock begins within BEGIN of one;
# obstore tries it for TRYING, and after a pause as long once more, for ANSWER. So it ends before the lock is another's.
RENEWED, BEGIN, TRYING, ANSWER = 0.25, 0.33, 0.03, 0.6
HELD: Final = re.compile(r".+\.held\.[0-9a-f]{32}")  # the names of a lock's objects
FIRST: Final = 2**16  # bytes that opening a file brings
SMALL: Final = 4 * 2**20  # bytes of a file that is brought whole
AHEAD: Final = 8 * 2**20  # bytes that are brought at a time where a file is read on; of one that waits in memory
Meta = Mapping[str, Any]  # of an object: path, size, last_modified, e_tag
COUNTS: Final = Counter[str]()  # this process's requests by kind, and bytes in and out
_STORES: Final = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore", "memory": "MemoryStore"}  # obstore's classes
_KEYS: Final = {  # how credentials are given
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to a service account's file",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
#: What obstore has to be told of the usual files: their word for it, and the variables that win over them.
_AWS: Final = {name: (f"aws_{name}", "AWS_ACCESS_KEY_ID") for name in ("access_key_id", "secret_access_key")} | {
    "session_token": ("aws_session_token", "AWS_ACCESS_KEY_ID"),
    "region": ("region", "AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint": ("endpoint_url", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"),
}
_AGAIN: Final = "run the same command again (what is done is kept)"
_ENDPOINTS: Final = {"s3": _AWS["endpoint"][1:], "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")}
#: Refusals that S3 answers with status 400 and that other credentials may mend.
_TOKENS: Final = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired")
_WHY: Final = {
    "NoSuchBucket": "there is no such bucket; make it, or correct the name",
    "RequestTimeTooSkewed": "the clocks of this machine and of the storage differ by too much; set this one (by NTP)",
    **dict.fromkeys(_TOKENS, "the credentials have expired; get new ones, then run the same command again"),
    "InvalidAccessKeyId": f"the access key is unknown there; {_KEYS['s3']}",
    "SignatureDoesNotMatch": f"the secret is not that of the access key; {_KEYS['s3']}",
    "EntityTooLarge": "an object is larger than it takes, or copies (5 GB); lower features.count",
}
#: A machine's own service is asked for credentials where nothing else says any.
_OF_MACHINE: Final = re.compile(
    r"Generic \w+ error: (Error performing token request: )?Error performing \w+ http://(169\.254\.|metadata\.google)"
)
_lock: Final = threading.Lock()
#: Stores of this process by scheme, bucket and whether what they are asked is fenced.
_opened: Final = dict[tuple[str, str, bool], Any]()
T = TypeVar("T")
#: The locks that this thread holds, and fence what it changes.
_HELD: Final[ContextVar[tuple["BucketLock", ...]]] = ContextVar("_HELD", default=())


class UnansweredError(OSError, IncompleteError):
    """The storage did not answer, or only that it could not, as long as it was waited for."""

    def __str__(self) -> str:
        return str(self.strerror)


class RefusedError(PermissionError, InputError):
    """The storage refuses what is wanted: credentials, bucket or clock are not right."""

    def __str__(self) -> str:
        return str(self.strerror)


class CredentialsError(RefusedError):
    """The storage refuses the credentials, or what they do not allow."""


def ask(place: str, kind: str, call: Callable[[Any], T], requests: int = 1) -> T:
    """What `call` makes of obstore's store of the bucket of SCHEME://BUCKET/KEY, by requests of a kind, which may be
    made twice: obstore tries some again, not a cut answer. Credentials that are refused are read once more, as they
    may have been rotated. Errors are as of local files, or one sentence."""
    scheme, _, rest = place.partition("://")
    bucket = rest.partition("/")[0]
    if not re.fullmatch(r"[\w.-]+", bucket) or carries_secret(place):
        where = "credentials belong in files or in the environment"
        raise InputError(f"{redact(place)}: names no bucket; write {scheme}://BUCKET/PATH ({where})")
    end, locks = time.monotonic() + patience(), _HELD.get() if kind in ("put", "copy", "delete") else ()
    were_credentials_read_again = False
    while True:
        if not all(lock.lasts() for lock in locks):
            late = f"this run was paused, or not answered, for {stale():g} s, and another may write there now"
            raise UnansweredError(errno.EIO, f"{place}: {late}; {_AGAIN}")
        count(**{kind: requests})
        store = connect(scheme, bucket, fenced=bool(locks))
        try:
            return call(store)
        except Exception as error:
            of_obstore = isinstance(error, OSError | ValueError) or type(error).__module__.startswith("obstore")
            if isinstance(error, DorffError) or not of_obstore:
                raise  # in full already, or a bug
            meant = _meant(error, place, scheme, f"{scheme}://{bucket}")
            if isinstance(meant, CredentialsError) and not were_credentials_read_again:
                were_credentials_read_again = True
                _close(store)
                continue
            if not isinstance(meant, UnansweredError) or time.monotonic() > end or stop_requested():
                raise meant from None  # the library's own shows the whole request
        time.sleep(random.uniform(0.1, 1.0))


def seconds(meta: Meta) -> int:
    """When an object changed, in whole seconds: not all answers say more."""
    return int(meta["last_modified"].timestamp())


def count(**what: int) -> None:
    with _lock:
        COUNTS.update(what)


def take_counts() -> dict[str, int]:
    """What this process has counted since the last call: it is the caller's now."""
    with _lock:
        taken = dict(COUNTS)
        COUNTS.clear()
    return taken


def asked_since(before: Counter[str]) -> dict[str, int]:
    """Requests and bytes since COUNTS was `before`; empty where there were none."""
    with _lock:
        did = COUNTS - before
    requests = sum(number for kind, number in did.items() if not kind.startswith("bytes"))
    return {"requests": requests, "bytes_read": did["bytes_in"], "bytes_written": did["bytes_out"]} if did else {}


def _meant(error: Exception, place: str, scheme: str, bucket: str) -> Exception:
    """By what no key can say: texts have the request's address in them, in which a space or a < is written otherwise,
    and begin with what was asked."""
    text, kind = str(error).partition("Debug source")[0].rstrip(), type(error).__name__
    code, status = (m[1] if (m := re.search(p, text)) else "" for p in (r"<Code>(\w+)<", r" status code: (\d+)"))
    denied = kind in ("PermissionDeniedError", "UnauthenticatedError") or status in ("401", "403")
    if (why := _WHY.get(code)) is None:
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(errno.ENOENT, "No such file or folder", place)
        if kind in ("AlreadyExistsError", "PreconditionError"):
            return FileExistsError(errno.EEXIST, "Is there already", place)
        if status == "416" or text.startswith("Generic InMemory error: Invalid range"):
            return EOFError()
        if _OF_MACHINE.match(text):
            why = f"no credentials; {_KEYS[scheme]}"
        elif denied:
            why = "access is denied; have the credentials allow reading, writing, listing and deleting there"
        elif isinstance(error, ValueError) or (status[:1] in ("3", "4") and status not in ("408", "429")):
            why = f"the request is not understood ({code or status or 'its path'}); correct path, region and endpoint"
    if why is not None:
        expired = code in _TOKENS or (status == "400" and not code)  # HEAD has no code
        may_be_rotated = (denied and code != "RequestTimeTooSkewed") or expired
        refusal = CredentialsError if may_be_rotated else RefusedError
        return refusal(errno.EACCES, f"{bucket}: {why}")
    did = f"answered with status {status}" if status else "did not answer"
    where = re.search(r"Error performing \w+ (https?://[^/\s@]+)[/\s]", text)
    cause = re.search(r'\b(?:message|error): "([^"]+)"', str(error))  # the system's words, below its library's
    more = f" ({cause[1] if cause else 'nothing more is known'}, at {where[1]})" if where and not status else ""
    return UnansweredError(errno.EIO, f"{place}: the storage {did} for {patience():g} s{more}; {_AGAIN}")


def connect(scheme: str, bucket: str, *, fenced: bool) -> Any:
    """Return the store of a bucket: one for this process, as long as its credentials are taken.

    What a `fenced` one is asked for ends with the lock.
    """
    key = (scheme, bucket, fenced and scheme != "memory")
    store = _opened.get(key)
    if store is None:
        store = _opened.setdefault(key, _open(scheme, bucket, fenced=fenced))
    return store


def forget_stores() -> None:
    """Have credentials, settings and endpoints read anew at the next request."""
    _opened.clear()


def _close(refused: Any) -> None:
    """Forget a store whose credentials were refused, unless another thread has done so."""
    with _lock:
        for key, store in list(_opened.items()):
            if store is refused:
                del _opened[key]


def _open(scheme: str, bucket: str, *, fenced: bool) -> Any:
    """Make the store of a bucket, with credentials as they are in files and environment now."""
    try:
        from obstore import store
    except ImportError as error:
        raise InputError(f"{scheme}://{bucket}: needs the library obstore; pip install 'dorff[s3]'") from error
    if scheme == "memory":
        return store.MemoryStore()
    own, variables = _aws_files() if scheme == "s3" else {}, _ENDPOINTS.get(scheme, ())
    endpoint = next(filter(None, map(os.environ.get, variables)), own.get("endpoint", ""))
    if endpoint and not re.fullmatch(r"https?://(\[[\da-fA-F:]+\]|[\w.-]+)(:\d+)?(/[!-~]*)?", endpoint, re.ASCII):
        wanted = f"wanted http://HOST:PORT or https://HOST, got {redact(endpoint)!r}"
        raise InputError(f"{scheme}://{bucket}: its endpoint: {wanted}; correct {variables[0]}, or the profile's")
    # It hears no signal: `ask`, which does, goes on trying. Of what is brought, some must come in that time.
    wait, pause, most = min(patience(), 5.0), 5.0, {"read_timeout": timedelta(seconds=max(patience() / 2, 1))}
    if (held := stale()) and fenced:
        wait, pause, most = TRYING * held, TRYING * held, {"timeout": timedelta(seconds=ANSWER * held)}
    backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=pause), "base": 2}
    client = {"connect_timeout": "5s", "allow_http": endpoint.startswith("http://"), **most}
    retries = {"max_retries": 1000, "retry_timeout": timedelta(seconds=wait), "backoff": backoff}
    try:
        return getattr(store, _STORES[scheme])(bucket, client_options=client, retry_config=retries, **own)
    except Exception as error:  # nothing has been asked yet
        why = redact(str(error)).partition("\n")[0].partition("error: ")[2] or "cannot be reached so"
        raise InputError(f"{scheme}://{bucket}: {why}; {_KEYS[scheme]}") from None


def _aws_files() -> dict[str, str]:
    """What the usual files say of the profile AWS_PROFILE, and the environment does not: obstore reads that alone."""
    profile, values = os.environ.get("AWS_PROFILE", "default"), dict[str, str]()
    for variable, name in (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")):
        parser = configparser.RawConfigParser()
        with suppress(configparser.Error, UnicodeDecodeError):
            parser.read(os.path.expanduser(os.environ.get(variable, f"~/.aws/{name}")))
        for section in {profile, f"profile {profile}"} & {*parser.sections()}:
            values.update(parser.items(section))
    return {to: values[key] for to, (key, *by) in _AWS.items() if key in values and not any(map(os.environ.get, by))}


class BucketLock:
    """The lock of a location, held from here on; BlockingIOError where it is not to be had until `end`."""

    def __init__(self, of: Any, seconds: float) -> None:
        end = time.monotonic() + max(seconds, stale() + 5)
        self._of, self._begin, self._released = of, f"{of.name}.held.", threading.Event()
        while not self._taken():
            if time.monotonic() > end:
                raise BlockingIOError(errno.EAGAIN, "Locked", str(of))
            time.sleep(random.uniform(0.02, 0.3))
        self._thread = threading.Thread(target=self._renewing, name="dorff-lock", daemon=True)
        self._thread.start()
        self._outer = _HELD.set((*_HELD.get(), self))

    def ours(self) -> bool:
        return _clock() - self._sent < stale()

    def lasts(self) -> bool:
        """Whether what is asked for now ends while it is ours; waits for a renewal that is late."""
        while self.ours() and _clock() - self._sent > BEGIN * stale():
            time.sleep(0.02)
        return self.ours()

    def release(self) -> None:
        _HELD.reset(self._outer)
        self._released.set()
        self._thread.join()
        with suppress(OSError, DorffError):  # it is stale in time
            self._mine.unlink(missing_ok=True)

    def _taken(self) -> bool:
        self._mine, self._sent = self._of.with_name(f"{self._begin}{uuid.uuid4().hex}"), _clock()
        alone = False
        try:
            self._mine.put(b"")
            there = self._there()
            now = there.pop(self._mine.name, -1)  # by the storage's clock
            for name in [name for name, changed in there.items() if now - changed > stale() + 2]:
                self._of.with_name(name).unlink(missing_ok=True)
                del there[name]
            alone = now >= 0 and not there and self.ours()
        finally:
            if not alone:
                with suppress(OSError, DorffError):
                    self._mine.unlink(missing_ok=True)
        return alone

    def _there(self) -> dict[str, int]:
        """The objects of this lock, and when each was changed (s)."""
        before = self._of.with_name(self._begin).key
        page: Sequence[Meta] = next(self._of.parent.listed(before), [])
        times = {meta["path"].rpartition("/")[2]: seconds(meta) for meta in page if meta["path"].startswith(before)}
        return {name: changed for name, changed in times.items() if HELD.fullmatch(name)}

    def _renewing(self) -> None:
        while not self._released.wait(RENEWED * stale()) and self.ours():
            sent = _clock()
            with suppress(OSError, DorffError):
                self._mine.put(b"")
                self._sent = sent if self.ours() else self._sent


def _clock() -> float:
    """Seconds that go on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class BucketFile(io.RawIOBase):
    """A file to read and to seek in. Opening brings its first bytes, and its size; a small one is brought whole;
    `ahead`: where it is read on, much is brought at a time."""

    def __init__(self, name: str, part: Callable[[int, int], tuple[bytes, int]], *, ahead: bool) -> None:
        self.name, self._part, self._ahead, self._at, self._from = name, part, ahead, 0, 0
        self._held, self._size = part(0, FIRST)

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readall(self) -> bytes:
        return self.read(max(0, self._size - self._at)) or b""

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        end = max(self._at, min(self._at + len(into), self._size))
        if self._at < end and not self._from <= self._at <= end <= self._from + len(self._held):
            self._bring(end)
        brought = self._held[self._at - self._from : end - self._from]  # less where the file has changed meanwhile
        into[: len(brought)] = brought
        self._at += len(brought)
        return len(brought)

    def _bring(self, end: int) -> None:
        if self._size <= SMALL:
            self._held += self._part(len(self._held), self._size)[0]
            return
        if self._ahead and self._at == self._from + len(self._held):
            end = min(max(end, self._at + AHEAD), self._size)
        self._held, self._from = self._part(self._at, end)[0], self._at
