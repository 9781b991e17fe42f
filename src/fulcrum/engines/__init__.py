"""Plans on real federations, with a process for every part: `nvflare` runs on NVIDIA FLARE, `flower` on Flower.

Another engine is another folder, which carries the messages of `core` between silos, `aggregation` and `server`.

Imports from: base, core, aggregation, planning, server, simulation.
"""
