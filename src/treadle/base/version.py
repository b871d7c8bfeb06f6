"""The version of treadle."""

VERSION = "0.1.0"
