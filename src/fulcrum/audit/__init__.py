"""Attacks on plans, engines and runs: compares an observer's knowledge with the plan's claims.

New attacks and tests of the noise belong here. The folder draws no noise of its own: replays go through
`core`. `evidence` judges the measurements of `replays`, `integration` and `learning`; `audit_run` combines all four.

Imports from: base, core, aggregation, planning, server, simulation, engines.
"""
