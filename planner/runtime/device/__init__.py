"""A device with memory of its own: a WebGPU device, real or in software, and its bytes counted."""
