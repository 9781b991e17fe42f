"""PyTorch modules trained for all silos of a chunk together, on the processor or a GPU.

Change the folder for another layer or device.

Imports from: base, core, simulation.data, simulation.embedded.
"""
