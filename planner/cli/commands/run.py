"""`planner run`: a script that is not changed, with plans in its sessions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.choices import FROM_PLAN
from planner.cli import options as o
from planner.cli.console import note
from planner.cli.outputs import check_input
from planner.errors import UsageError
from planner.targets import Device
from planner.units import check_budget, check_time_limit, parse_bytes

if TYPE_CHECKING:
    from planner.running.opening import Wanted

ScriptName = Annotated[
    str,
    typer.Argument(metavar="SCRIPT", help="The script, or with -m a module.", show_default=False),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGS", help="The script's own arguments.", show_default=False),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """Options for planning, and for opening the script's sessions."""

    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="SIZE",
            help="Budget for models that planner has not written: 16GB, 12GiB, or 60% of a "
            "model's own peak.",
            show_default=False,
        ),
    ] = None
    plan: Annotated[
        list[Path] | None,
        typer.Option(
            "--plan",
            metavar="FILE",
            help="Apply this plan to the model that it was made for (repeatable).",
            show_default=False,
        ),
    ] = None
    module: Annotated[bool, typer.Option("-m", help="Run a module, as python -m does.")] = False
    device: Annotated[
        Device | None,
        typer.Option(
            "--device", help="Device to plan models for [the device that a session opens on]."
        ),
    ] = None
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit", metavar="SECONDS", help="Time limit for the search, for each model."
        ),
    ] = 60.0
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not run planned models to compare numbers.")
    ] = False
    pool: Annotated[
        str | None,
        typer.Option(
            "--pool",
            metavar="SIZE",
            help="Open files that planner wrote in a memory pool of exactly this size, or of their "
            "plan's (plan).",
            show_default=False,
        ),
    ] = None
    disk: Annotated[
        Path | None,
        typer.Option(
            "--disk",
            metavar="DIR",
            help="Folder for swaps of files that were planned for a disk (CPU); plans made for "
            "--budget swap there too [PLANNER_DISK, TMPDIR or /var/tmp].",
            show_default=False,
        ),
    ] = None
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Raise an error in the script instead of printing a warning."
        ),
    ] = False
    explain: Annotated[
        bool, typer.Option("--explain", help="Print on stderr what was done to each session.")
    ] = False

    def wanted(self, dims: Mapping[str, int]) -> Wanted:
        """Return the request for each session.

        Raises:
            UsageError: an option is invalid; ModelError: a file is not a plan.
        """
        if self.budget is not None:
            check_budget(self.budget)
        if self.pool not in (None, FROM_PLAN):
            parse_bytes(self.pool, what="--pool", or_else=f", or {FROM_PLAN}")
        check_time_limit(self.time_limit)
        from planner.running.opening import Wanted

        return Wanted(
            budget=self.budget,
            plans=_by_model(self.plan) if self.plan else {},
            device=self.device,
            dims=dims,
            verify=not self.no_verify,
            time_limit_s=self.time_limit,
            strict=self.strict,
            explain=self.explain,
            pool=self.pool,
            disk=self.disk,
        )


def _by_model(plans: list[Path]) -> dict[str, Path]:
    """Return the plan files, each by the digest of its model."""
    for path in plans:
        check_input(path, what="plan")

    from planner.pipeline.record.assemble import read_plan  # with all of the pipeline: a second

    return {read_plan(path).model_sha256: path for path in plans}


@o.asks("run", limited=False)
def run(
    script: ScriptName, arguments: Arguments = None, *, plans: Plans, asked: o.Said
) -> Callable[[], None]:
    """Run an unchanged script, and open each session as its plan needs it.

    In this process, onnxruntime.InferenceSession and the Module of onnxruntime.training.api open a file
    that planner wrote with the settings that it needs: level, order, memory pattern and reuse, packing,
    provider and its options, an arena of the plan's size. With --budget, any other model is planned
    before its session opens. With --plan, a session on the model of a plan file opens the rewritten model
    that planner apply writes. Plans and rewritten models are kept for the next start.

    Options and providers that the script sets are kept; a warning on stderr says which of them contradict
    the plan. A model that cannot be planned (an unbound dim, a budget that no plan fits) is opened as it
    is, with a warning. --strict turns these warnings into errors.

    \b
    Examples:
      planner run train.py --epochs 3
      planner run --budget 16GB train.py --epochs 3
      planner run --budget 60% --dim batch=32 --explain -- train.py
      planner run --plan model.plan.json train.py --epochs 3
      planner run --pool plan train.py --epochs 3
      planner run --budget 16GB --device cuda --strict -m package.train --epochs 3
    """
    wanted = plans.wanted(asked["dims"] or {})
    if not plans.module and not os.path.exists(script):
        raise UsageError(f"script {script} does not exist")

    from planner.running.opening import Opener
    from planner.running.script import Script

    to_run = Script(name=script, arguments=tuple(arguments or ()), is_module=plans.module)

    def start() -> None:
        from planner.running.classes import take_over

        take_over(Opener(wanted, note))
        to_run.run()

    return start
