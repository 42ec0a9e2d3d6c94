"""What `peers.md` says around its tables."""

from __future__ import annotations

WHY = """
A PyTorch user who is short of memory checkpoints blocks, compiles with a memory budget, or moves saved
tensors away. This is what a rewritten graph gives instead, at the same peak: one training step (loss
and all gradients, no optimizer), equal networks, parameters, data and float32 on both sides.
"""

_PEAK_CPU = """
- **Peak**: bytes of tensors, from the allocators' own events. PyTorch: memory events of its profiler in
a warm step, plus parameters, buffers, input and target, which are there before it. ONNX Runtime: the
memory events of its profile, node by node (bytes as requested, memory pattern and reuse off, so that in
use is what is alive), plus the graph's inputs and initializers: the same parameters, buffers, input and
target. Gradients and temporary tensors are in both. Scratch memory within kernels is in neither: oneDNN
and MKL allocate theirs beside PyTorch's allocator, MLAS its packed blocks beside the arena; what ONNX
Runtime's convolutions take from the arena for a moment is seen there, and left out of the peak. *With
scratch* has that, too; PyTorch has no such figure, but for what shows in RSS. A plan's budget is the
peer's peak; where PyTorch's native kernels take scratch as tensors, it counts as PyTorch's.
"""

_PEAK_GPU = """
- **Peak**: PyTorch: `torch.cuda.max_memory_allocated` over a warm step, scratch that its kernels take
from that allocator included. ONNX Runtime: bytes of tensors on the device, replayed by planner's
verification from the executed order, inputs included; *with scratch* is what its arena was seen to
hold.
"""

_RSS = """
- **RSS**: by how much the process grew during a step, at most (Linux's high-water mark; PyTorch's in a
warm step, ONNX Runtime's in the first one, which fills its arena). A second, weaker figure: it has
oneDNN's and MKL's buffers and what an allocator keeps, and not the parameters and data, which were
there before.
"""

_NUMBERS = """
- **Numbers**: *loss* relative to eager's; *gradients*: norm of the difference of all of them, by their
norm; *worst*: the largest difference of an element, by its gradient's largest element. Each network's
first line says how far eager itself is from PyTorch in double precision. Batch normalization and ReLUs
near 0 amplify rounding in ResNet-50 and U-Net.
"""

_TIME = """
- **Time**: every contestant in a process of its own, warm, one after the other in rounds, with the same
number of threads; in its turn each runs two steps, of which the second counts.
"""

_PLANNER = """
- **planner**: `export_training_graph`, then `optimize` at exactly the peer's peak in bytes, with
measured operator times (`calibrate=True`) and no copies to the host on a CPU, verified. Where no plan
fits with operations left whole, `split="auto"` is allowed. `--fuse auto`: the same with element
operations fused where that is priced lower; its kernel's tanh, exp and erf are within 3 units in the
last place of float64, so that its bits are not ONNX Runtime's. The session loads planner's library.
"""

_PLANNER_GPU = """
- **planner**: the graph that `export_training_graph` writes, then `optimize(device="cuda",
feeds="device")` at exactly the peer's peak in bytes, verified. Operation times are those of the hardware
profile (`--hardware`), and copies to the host are allowed. `--fuse auto`: the same with element
operations fused where that is priced lower, in rounding.
"""

_SAVE_ON_CPU = """
- **save_on_cpu** is meant for a GPU. On a CPU it only copies what is saved (`pin_memory=True`; without
it, nothing happens), within the same memory, and no plan is made for its peak. AOTAutograd's offloading
(`torch._functorch.config.enable_activation_offloading`) puts on the CPU what is there already.
"""

_COMPILE = """
- **torch.compile** at budget 1.0 is its default; lower ones let it recompute more. The budget bounds
what is saved from forward to backward, not the peak.
"""

_NO_GPU = """
- **GPU**: `python -m reports.peers --device cuda --hardware NAME` does the same on a GPU, with networks
of a size for one: [peers_cuda.md](peers_cuda.md). No number here is of a GPU.
"""

_ON_GPU = """
- **GPU**: ONNX Runtime's inputs and outputs are bound there. Products are of TF32 on both sides: ONNX
Runtime's default, and `torch.set_float32_matmul_precision("high")`.
"""

COLUMNS = """
*Step*: a step's time by eager's in the same round, the median over the rounds. *Ours / peer*: the same
by the peer's, with the quartiles in brackets; below 1 planner is faster. *Runtime*: the exported graph
as it is on ONNX Runtime, by eager: what changes with the runtime before anything is planned. *Plan*: the
rewritten model by the graph as it is: what the plan costs. *Ahead*, *level* (within 2%) or *behind* is
said of *ours / peer*.
"""

PARTITIONER = """
No runtime is in this table. AOTAutograd traces forward and backward as one graph with inductor's
decompositions; PyTorch's min-cut partitioner chooses at each `activation_memory_budget` what is saved,
and makes a forward and a backward graph. The joint graph's operators are a planning problem (storages
as they really are, views folded away), the partitioner's two graphs one after the other a schedule of
it, and planner's simulator says its peak and time. planner's solver has that peak as its budget, and
keeps the partitioner's order of first runs. *Adds* is time beyond every operator run once, by one of
two prices, each with a plan of its own: times of the operators measured here one by one, or
floating-point operations alone, which is how the partitioner itself reckons. *Bound*: no plan in that
order adds less.
"""

PARTITIONER_LIMITS = """
Nothing is fused here, while the partitioner recomputes what inductor will fuse, since it is nearly free
there, at 1.0 too: the measured price is hard on it, and by floating-point operations both are judged by
its own. It bounds what is saved, not the peak, which may rise again as the budget falls: values that
are made again are held, too. Inductor reorders its graphs for the peak afterwards, which is not
simulated. The rows above have what compiled code really does.
"""


def line(text: str) -> str:
    """Return a paragraph as one line of Markdown."""
    return " ".join(text.split())


def method(device: str) -> list[str]:
    """Return a list of the measurements and their methods."""
    on_cpu = device == "cpu"
    peak, plan, gpu = (
        (_PEAK_CPU, _PLANNER, _NO_GPU) if on_cpu else (_PEAK_GPU, _PLANNER_GPU, _ON_GPU)
    )
    saved = [_SAVE_ON_CPU] if on_cpu else []
    return [line(text) for text in (peak, _RSS, _NUMBERS, _TIME, plan, *saved, _COMPILE, gpu)]
