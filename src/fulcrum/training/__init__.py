"""The embedded engine: a whole federation trained in one process, for research and for planning ahead."""
