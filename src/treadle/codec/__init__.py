"""How values cross the wire: as JSON, typed where a type is declared, tagged where none is.

======================  ====================================================================
`base`                  `Codec`, the protocol, and the size limit
`tags`                  what JSON has no word for, and the tags that stand for it
`default`               `JsonCodec`: plain JSON when that is enough, tags when it is not
`hooks`                 classes that msgspec does not know: pydantic models, paths, ...
`lower`                 a typed value as a tree that any codec can write
`shape`                 one declared type: validate, encode, decode
`hints`                 the annotations of a function, resolved
`signature`             the parameters of a function: bind, encode, decode, call
======================  ====================================================================

Two promises hold everywhere. What is read back equals what was written, or writing it raised
`EncodeError` with the path of what could not be. And bytes that are not ours, or not the declared
type, raise `DecodeError` and nothing else.
"""

from .base import MAX_PAYLOAD, Codec, check_size
from .default import JsonCodec, default_codec
from .shape import Shape
from .signature import Parameter, Signature

__all__ = [
    "MAX_PAYLOAD",
    "Codec",
    "JsonCodec",
    "Parameter",
    "Shape",
    "Signature",
    "check_size",
    "default_codec",
]
