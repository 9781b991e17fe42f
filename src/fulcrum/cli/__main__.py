"""Runs the command line as `python -m fulcrum.cli`."""

from fulcrum.cli.command_line import main

main()
