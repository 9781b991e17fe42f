"""Runs the command line as `python -m fulcrum.cli`."""

from fulcrum.cli.app import main

main()
