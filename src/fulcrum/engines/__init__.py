"""Plans on real federations, each part a process of its own: `nvflare` runs on NVIDIA FLARE, `flower` on Flower.

Change it for another engine: a folder that carries the messages of `exchange` between the parts of `roles`.

Imports from: base, storage, planning, noise, exchange, masking, roles, simulation.
"""
