"""A software GPU for the tests: SwiftShader, which comes with chromium, its bytes counted.

device.py           finds it, and starts processes that see it
counting.py         the driver that counts: compiled, and read
backend.py          planner's WebGPU backend on it, which planner takes while `HOOK` names it
"""

HOOK = "PLANNER_WEBGPU_BACKEND"
"""The environment variable by which planner takes another backend for WebGPU."""
MODULE = "tests.swiftshader.backend"
