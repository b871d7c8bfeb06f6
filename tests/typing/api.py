"""How a type checker sees the public names. Checked by pyright and mypy, never run."""

from typing import assert_type

import treadle

assert_type(treadle.__version__, str)
