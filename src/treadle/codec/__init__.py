"""How values are stored: as JSON, typed where a type is declared, tagged where none is.

======================  ====================================================================
`json_codec`            `Codec`, the protocol, and `JsonCodec`, the default; large values are read in threads
`tags`                  the tags for values that JSON has no form for
`hooks`                 classes that msgspec does not know: pydantic models, paths, collections
`collisions`            sets and dicts that would take long to build
`tree`                  turns a typed value into a tree that any codec can write
`shape`                 one declared type: validate, encode, decode
`arguments`             the parameters of a function: bind, encode, decode, call
`bad_value`             the exception that these modules raise among themselves
======================  ====================================================================

Two promises hold for all of them. A value that was written reads back equal; if it cannot, writing it raises
`EncodeError` with the path of the part at fault. Bytes that treadle did not write, or that are not of the
declared type, raise `DecodeError` and nothing else.
"""

from .arguments import Arguments, Parameter, stored_type
from .bad_value import unreadable
from .json_codec import MAX_PAYLOAD, Codec, JsonCodec, check_size, default_codec
from .shape import Shape, plain_class_in

__all__ = [
    "MAX_PAYLOAD",
    "Arguments",
    "Codec",
    "JsonCodec",
    "Parameter",
    "Shape",
    "check_size",
    "default_codec",
    "plain_class_in",
    "stored_type",
    "unreadable",
]
