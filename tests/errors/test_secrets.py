"""Passwords and keys are not said; everything else is."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorff.errors import secrets
from dorff.errors.secrets import HIDDEN, carries_secret, redact


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no scheduler at tcp://me:pass@node:8786 (refused)", "no scheduler at tcp://***@node:8786 (refused)"),
        ("s3://AKIA:a/b+c=@bucket/x", "s3://***@bucket/x"),
        ("tcp://me:p@ss@node:1, tls://you@host", "tcp://***@node:1, tls://***@host"),
        ("/srv/jobs/https:/me:pass@host/x", "/srv/jobs/https:/***@host/x"),
        ("'https://h/x.zarr?a=1&X-Amz-Signature=ab12&b=2'", "'https://h/x.zarr?a=1&X-Amz-Signature=***&b=2'"),
        ("https://h/x?sv=2&sig=a%2Bb", "https://h/x?sv=2&sig=***"),
        ("https://h/x?access_token=t;X-Amz-Security-Token=u", "https://h/x?access_token=***;X-Amz-Security-Token=***"),
        (
            "DefaultEndpointsProtocol=https;AccountName=sea;AccountKey=a+b/c==;EndpointSuffix=core.example",
            "DefaultEndpointsProtocol=https;AccountName=sea;AccountKey=***;EndpointSuffix=core.example",
        ),
        ("AccountKey=a+b/c==", "AccountKey=***"),
        ("{'account': 'sea', 'AccountKey': 'a+b/c=='}", "{'account': 'sea', 'AccountKey': '***'}"),
        ("BlobEndpoint=x;SharedAccessSignature=sv=2&sig=a%2B&se=3;b", "BlobEndpoint=x;SharedAccessSignature=***;b"),
        (
            "Endpoint=sb://h/;SharedAccessKeyName=me;SharedAccessKey=a=",
            "Endpoint=sb://h/;SharedAccessKeyName=***;SharedAccessKey=***",
        ),
        ("GET /x, Authorization: Bearer ey.J-a_b~c+/=, refused", "GET /x, Authorization: Bearer ***, refused"),
        ("{'authorization': 'bearer abc', 'x': 1}", "{'authorization': 'bearer ***', 'x': 1}"),
        ("Authorization: Basic bWU6cGFzcw==", "Authorization: Basic ***"),
        ("401 for 'Bearer abc'", "401 for 'Bearer ***'"),
    ],
)
def test_urls_lose_their_secrets(text: str, said: str) -> None:
    assert redact(text) == said
    assert carries_secret(text) and not carries_secret(redact(text))


@pytest.mark.parametrize(
    "text",
    [
        "tcp://node:8786", "s3://bucket/sea.zarr", "me@example.org", "runs/sea@2 and b@c", "https://h/x?rows=3&b=2",
        "a key=3 is no query", "the bearer token has expired", "Bearer realm='x'", "authorization: failed",
        "AccountName=sea", "bearer authentication, please",
        "C:/data", "solve.ridge must be a number",
    ],
)  # fmt: skip
def test_what_is_no_secret_is_left_as_it_is(text: str) -> None:
    assert redact(text) == text and not carries_secret(text)


@given(st.text())
@settings(max_examples=50)
def test_hiding_twice_hides_no_more(text: str) -> None:
    once = redact(f"tcp://{text}@host {text}")
    assert redact(once) == once


def test_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.touch()
    for name, value in {
        "AWS_SECRET_ACCESS_KEY": "wJalr/EXAMPLE", "MY_TOKEN": "abc", "db_password": "wJalr/EXAMPLE+more",
        "GOOGLE_APPLICATION_CREDENTIALS": str(file), "HOMEPAGE": "not-a-secret",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    said = redact(f"tried wJalr/EXAMPLE+more, wJalr/EXAMPLE, abc, not-a-secret and {file}")
    assert said == f"tried {HIDDEN}, {HIDDEN}, abc, not-a-secret and {file}"


@pytest.mark.parametrize("text", ["a", "a:/", "?sig", "?" + "sig" * 9, "a:/@", "Bearer ", "@", "AccountKey", "://"])
def test_a_long_text_is_searched(text: str) -> None:
    long = text * (2**20 // len(text))
    assert len(redact(long)) <= 2 * len(long)


PATTERNS = [pattern for pattern in vars(secrets).values() if isinstance(pattern, re.Pattern)]


@pytest.mark.parametrize("pattern", PATTERNS, ids=[pattern.pattern[:20] for pattern in PATTERNS])
def test_no_search_goes_to_the_end_of_a_text_at_each_of_its_characters(pattern: re.Pattern[str]) -> None:
    """A repeat without a bound ends a pattern or stands after a fixed word; others took hours of a megabyte."""
    without_classes = re.sub(r"\[(?:\\.|[^]\\])*\]", "", pattern.pattern)
    before_repeat = re.split("[*+]", without_classes)[0]
    assert before_repeat == without_classes.rstrip("+") or re.search("[A-Za-z]{6}", before_repeat)
