"""Attacks on plans, engines and runs: what an observer really learns, beside what the plan claims.

Change it for another attack, or another test of the noise. It draws no noise of its own: replays go through `core`.
`evidence` judges what `replays`, `integration` and `learning` measure; `audit_run` puts them together.

Imports from: base, core, aggregation, planning, server, simulation, engines.
"""
