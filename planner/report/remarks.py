"""Tell remarks that a reader must see from those that only describe how a result was obtained.

Assumptions of a plan and notes of a verification are sentences. Sentences that are known to change no
conclusion appear only with `--verbose`, on the page and in `--json`. Every other sentence is shown,
unknown ones included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ROUTINE = (
    r"operation times are a roofline of ",
    r"[\d,]+ \w+ that ONNX Runtime's folding would keep on the device throughout ",
    r"the graph that ONNX Runtime's optimizers made was compared with the file by numbers, "
    r"(?!.*(were not compared|optimizations change|does not run here))",
    r"[\d,]+ \w+ \w+ not run again, first ",
    r"[\d,]+ \w+ \w+ not copied, first ",
    r"initializers in files are not loaded for planning",
    r"one file for every target: none leaves a node to the CPU",
    r"copies are planned on the stream of the operations",
    r"\d+ of \d+ nodes run on the CPU, and \d+ copies between it ",
    r"[\d,]+ \w+ \w+ in chunks of rows(?!.*rounding)",
    r"micro-batches: a step is \d+ runs of ",
    r"[\d,]+ \w+ \w+ kept in the plain layout",
    r"sessions ran with \d+ intra-operator thread",
    r"sessions ran at the level ORT_DISABLE_ALL, for which the plan is made",
    r"each model ran twice under default options",
    r"the model is a copy of the original: it has no planned order",
    r"swaps were watched in \d+ runs .* no violations",
    r"copies run beside the operations, by planner's native library(?!.*verify the file there)",
    r"host copies share the CPU's arena: live bytes are replayed",
    r"all outputs of the original on .* are within .* of the CPU's",
    r"steps were not timed: the device is software",
    r"of what is stored in \w+, [\d,]+ tensors, the largest magnitude seen is ",
)
"""Patterns of the beginnings of sentences that change no conclusion."""

_ROUTINE = re.compile("|".join(f"(?:{beginning})" for beginning in ROUTINE), re.DOTALL)
_BUSY = "the machine was busy while "


def that_matter(remarks: Sequence[str]) -> list[str]:
    """Return the remarks that may change a reader's conclusions, each once, in their order.

    Those on a busy machine are one: the first, with what else was measured meanwhile.
    """
    found = [text for text in dict.fromkeys(remarks) if not _ROUTINE.match(text)]
    busy = [text for text in found if text.startswith(_BUSY)]
    if len(busy) < 2:
        return found
    more = (text.removeprefix(_BUSY).partition(":")[0] for text in busy[1:])
    said = f"{busy[0]}; it was busy, too, while {' and '.join(more)}"
    return [said if text == busy[0] else text for text in found if text not in busy[1:]]
