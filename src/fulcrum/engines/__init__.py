"""Plans on real federations, each part a process of its own: `nvflare` runs on NVIDIA FLARE."""
