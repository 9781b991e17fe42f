"""Attacks on plans, engines and runs: what an observer really learns, beside what the plan claims.

Change it for another attack, or another test of the noise. It draws no noise of its own: replays go through `noise` and
`roles`. `evidence` judges what `replays`, `real_parts` and `learning` measure; `whole` puts them together.

Imports from: base, storage, federation, privacy, estimation, planning, noise, ledger, exchange, masking, roles,
simulation, engines.
"""
