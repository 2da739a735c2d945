"""`python -m excise`: the same as the command `excise`."""

from excise.cli import main

main()
