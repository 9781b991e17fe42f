"""Plans on real federations, each part a process of its own: `nvflare` runs on NVIDIA FLARE, `flower` on Flower.

Change it for another engine: a folder that carries the messages of `core` between silos, `aggregation` and `server`.

Imports from: base, core, aggregation, planning, server, simulation.
"""
