"""`python -m treadle` is the command line."""

from treadle.cli import main

main()
