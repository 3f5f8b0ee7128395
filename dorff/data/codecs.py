"""Chunks of Zarr arrays, decoded to no more bytes than their array declares: a few KB may claim to be gigabytes.

What a compressed chunk comes to is read from its header where there is one, before memory is taken; streams without one
are decoded up to the declared size. Codecs whose output nothing bounds are refused; `pickle` would run code."""

import asyncio
import bz2
import gzip
import io
import lzma
import math
import struct
import zlib
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import zarr
from numcodecs import blosc, lz4, zstd
from numcodecs.compat import ensure_contiguous_ndarray
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    VLenBytesCodec,
    VLenUTF8Codec,
    ZstdCodec,
)
from zarr.codecs._v2 import V2Codec

from dorff.errors import InputError

MOST_DICTIONARY: Final = 2**28  # bytes that LZMA may take to remember what it has decoded
MOST_ITEM: Final = 2**12  # bytes of a text of no fixed length, on average
MOST_EMPTY: Final = 2**30  # bytes of a chunk that is mostly beyond its array
_WIDEST: Final = 16  # bytes of a number
#: Codecs of Zarr v2 whose output is about as long as their input: filters of numbers, checksums, texts.
_NUMBERS: Final = {"delta", "fixedscaleoffset", "quantize", "bitround", "shuffle", "astype"}
_CHECKSUMS: Final = {"crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"}
_EVEN: Final = _NUMBERS | _CHECKSUMS | {"packbits", "vlen-utf8", "vlen-bytes"}
_EVEN_V3: Final = (BytesCodec, TransposeCodec, Crc32cCodec, VLenUTF8Codec, VLenBytesCodec)
_NAMES_V3: Final = {BloscCodec: "blosc", GzipCodec: "gzip", ZstdCodec: "zstd"}


def bounded(array: zarr.Array[Any], what: str) -> zarr.Array[Any]:
    """Return the array, whose chunks decode to their declared size or are an error.

    InputError for a codec whose output cannot be bounded, and for chunks much larger than the array.
    """
    item = np.dtype(array.dtype).itemsize
    chunk = math.prod(array.chunks) * item
    if chunk > max(MOST_EMPTY, 2 * math.prod(array.shape) * item):
        problem = f"a chunk declares {chunk:,} bytes, and the array has {math.prod(array.shape) * item:,}"
        raise InputError(f"{what}: {problem}; write it again, with smaller chunks.")
    metadata: Any = array.metadata
    if metadata.zarr_format == 2:
        pipeline = [_BoundedV2(metadata.filters, metadata.compressor)]
        for codec in (metadata.compressor, *(metadata.filters or ())):
            if codec is not None and codec.codec_id not in (*_DECODERS, *_EVEN):
                raise _unbounded(what, codec.codec_id)
    else:
        pipeline = [_bounded_codec(codec, what) for codec in metadata.codecs]
    source = array.async_array
    object.__setattr__(source, "codec_pipeline", type(source.codec_pipeline).from_codecs(pipeline))
    return array


def _unbounded(what: str, name: str) -> InputError:
    known = ", ".join(_DECODERS)
    return InputError(
        f"{what}: codec {name!r}: nothing bounds what its chunks decode to; write it with one of {known}."
    )


def _bounded_codec(codec: Any, what: str) -> Any:
    """A codec of Zarr v3 that keeps to the declared size."""
    if isinstance(codec, ShardingCodec):
        inner, index = ([_bounded_codec(one, what) for one in each] for each in (codec.codecs, codec.index_codecs))
        return replace(codec, codecs=tuple(inner), index_codecs=tuple(index))
    if isinstance(codec, _EVEN_V3):
        return codec
    name = _NAMES_V3.get(type(codec), "")
    config: dict[str, Any] = {}
    if not name:  # numcodecs' own, such as numcodecs.zlib
        described = codec.to_dict()
        name, config = str(described["name"]).removeprefix("numcodecs."), dict(described.get("configuration") or {})
        if name in _NUMBERS | _CHECKSUMS:
            return codec
    if name not in _DECODERS:
        raise _unbounded(what, name)
    return _BoundedV3(codec=codec, name=name, config=tuple(sorted(config.items(), key=str)))


def _limit(shape: tuple[int, ...], dtype: np.dtype[Any], *, widest: bool = False) -> int:
    """How many bytes a stage of decoding a chunk may come to, a checksum and what cannot be compressed included."""
    item = MOST_ITEM if dtype.kind in "OT" else max(dtype.itemsize, _WIDEST if widest else 1)
    size = math.prod(shape) * item
    return size + size // 64 + 4096


@dataclass(frozen=True, kw_only=True)
class _BoundedV3(BytesBytesCodec):
    """A compressor of Zarr v3."""

    codec: Any
    name: str
    config: tuple[tuple[str, Any], ...]
    is_fixed_size = False

    def to_dict(self) -> dict[str, Any]:
        return dict(self.codec.to_dict())

    def compute_encoded_size(self, input_byte_length: int, _: Any) -> int:
        return int(self.codec.compute_encoded_size(input_byte_length, _))

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        limit = _limit(chunk_spec.shape, chunk_spec.dtype.to_native_dtype())
        decode = _DECODERS[self.name]
        raw = await asyncio.to_thread(decode, chunk_data.as_array_like(), limit, dict(self.config))
        return chunk_spec.prototype.buffer.from_bytes(raw)


class _BoundedV2(V2Codec):
    """Compressor and filters of Zarr v2."""

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        dtype = chunk_spec.dtype.to_native_dtype()
        limit = _limit(chunk_spec.shape, dtype, widest=bool(self.filters))
        codec: Any = None if self.compressor is None else _Stage(self.compressor, limit)
        filters: Any = tuple(_Stage(one, limit) for one in self.filters or ()) or None
        return await V2Codec(filters=filters, compressor=codec)._decode_single(chunk_bytes, chunk_spec)


class _Stage:
    """One codec of Zarr v2, whose output may not be longer than `limit` bytes."""

    def __init__(self, codec: Any, limit: int) -> None:
        self._codec, self._limit = codec, limit

    def decode(self, raw: Any, out: Any = None) -> Any:
        name = self._codec.codec_id
        if name in _DECODERS:
            return _DECODERS[name](raw, self._limit, self._codec.get_config())
        decoded = self._codec.decode(raw)
        _check(getattr(decoded, "nbytes", None) or len(decoded), self._limit)
        return decoded


def _check(size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(f"a chunk decodes to {size:,} bytes or more, and {limit:,} at most are declared")


def _decode_blosc(raw: Any, limit: int, _config: dict[str, Any]) -> bytes:
    content = ensure_contiguous_ndarray(raw).view(np.uint8)
    if len(content) < 16:
        raise ValueError("a chunk is shorter than a header of Blosc")
    length, _, encoded = np.frombuffer(content[4:16].tobytes(), "<u4").tolist()
    _check(length, limit)
    if encoded > len(content):  # Blosc would read on, whatever lies there
        raise ValueError("a chunk ends before its end")
    return bytes(blosc.decompress(content))


def _decode_lz4(raw: Any, limit: int, _: dict[str, Any]) -> bytes:
    content = ensure_contiguous_ndarray(raw).view(np.uint8)
    _check(struct.unpack_from("<i", content[:4].tobytes())[0], limit)
    return bytes(lz4.decompress(content))


def _decode_zlib(raw: Any, limit: int, _: dict[str, Any]) -> bytes:
    return _whole(zlib.decompressobj(), memoryview(ensure_contiguous_ndarray(raw)), limit)


def _decode_gzip(raw: Any, limit: int, _: dict[str, Any]) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(memoryview(ensure_contiguous_ndarray(raw)))) as file:
        decoded = file.read(limit + 1)
    _check(len(decoded), limit)
    return decoded


def _decode_bz2(raw: Any, limit: int, _: dict[str, Any]) -> bytes:
    return _whole(bz2.BZ2Decompressor(), memoryview(ensure_contiguous_ndarray(raw)), limit)


def _decode_lzma(raw: Any, limit: int, config: dict[str, Any]) -> bytes:
    kind, filters = config.get("format", lzma.FORMAT_XZ), config.get("filters")
    for one in filters or ():
        _check(int(one.get("dict_size", 0)), MOST_DICTIONARY)
    plain = kind == lzma.FORMAT_RAW
    decoder = lzma.LZMADecompressor(kind, None if plain else MOST_DICTIONARY, filters if plain else None)
    return _whole(decoder, memoryview(ensure_contiguous_ndarray(raw)), limit)


def _decode_zstd(raw: Any, limit: int, _: dict[str, Any]) -> bytes:
    """A frame need not say its length, and several may follow one another."""
    content = memoryview(ensure_contiguous_ndarray(raw)).cast("B")
    if (claimed := _zstd_length(bytes(content[:18]))) is not None:
        _check(claimed, limit)
        return bytes(zstd.decompress(content))  # at most what it claims
    import pyarrow as pa

    with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
        decoded = stream.read(limit + 1)
    _check(len(decoded), limit)
    return bytes(decoded)


def _zstd_length(header: bytes) -> int | None:
    """What the first frame says of its length (RFC 8878, 3.1.1.1), where it says anything."""
    if len(header) < 6 or header[:4] != b"\x28\xb5\x2f\xfd":
        return None
    flag, alone = header[4] >> 6, header[4] >> 5 & 1
    start = 5 + (1 - alone) + (0, 1, 2, 4)[header[4] & 3]
    width = (alone, 2, 4, 8)[flag]
    if not width:
        return None
    return int.from_bytes(header[start : start + width], "little") + (256 if width == 2 else 0)


def _whole(decoder: Any, content: memoryview, limit: int) -> bytes:
    decoded: bytes = decoder.decompress(content, limit + 1)
    _check(len(decoded), limit)
    if not decoder.eof:
        raise ValueError("a chunk ends before its end")
    return decoded


_DECODERS: Final = {
    "blosc": _decode_blosc,
    "zstd": _decode_zstd,
    "lz4": _decode_lz4,
    "gzip": _decode_gzip,
    "zlib": _decode_zlib,
    "bz2": _decode_bz2,
    "lzma": _decode_lzma,
}
