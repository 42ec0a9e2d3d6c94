"""Build the update in the graph, with names, from an optimizer or a function of the loop.

State that the function creates in its first run (most of an optimizer's) is traced twice: when it is
created, and when a later run carries it on. If the first run equals the second one on constants, these
constants are the initial values. Otherwise an input `started`, false at first, selects between the two.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.optim import Optimizer

from planner.export.errors import UpdateRefused
from planner.export.optim import GRADIENT_SUFFIX, LEARNING_RATE
from planner.export.update.gradients import Gradients
from planner.export.update.graph import substituted
from planner.export.update.joining import either, flat
from planner.export.update.optimizers import Rates, check
from planner.export.update.outcome import Installed, Key, Update, UpdateOutcome, key_of
from planner.export.update.reach import Path, Reach, ValuePlace, name_of
from planner.export.update.redirect import plainly
from planner.export.update.trace import Tracer
from planner.export.update.traced import STARTED, State, TracedUpdate, needed, tensors_of


def update_of(optimizer: Optimizer | Update) -> Update:
    """Return the update itself, or an optimizer's step."""
    if isinstance(optimizer, Optimizer):
        check(optimizer)
        return optimizer.step
    return optimizer


def traced_update(
    optimizer: Optimizer | Update,
    module: nn.Module,
    gradients: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
) -> TracedUpdate:
    """Trace the code that runs after the backward pass of a step of `module`.

    Args:
        gradients: parameters that receive a gradient, by name.
        inputs: inputs of the step, which the update may read.

    Raises:
        UsageError: an optimizer has parameters of another module, or needs a closure.
        ExportError: the update cannot be traced.
    """
    given = {name: torch.empty_like(module.get_parameter(name)) for name in gradients}
    roots: list[tuple[str, Any]] = [("", update_of(optimizer))]
    if isinstance(optimizer, Optimizer):  # a scheduler's wrapper of its step does not lead to it
        roots.append((type(optimizer).__name__, optimizer))
    building = _Building(roots, module, inputs, given)
    while (found := building.build()) is None:
        pass
    return found


@dataclass
class _Building:
    """One update being traced: its runs, and the names of its state.

    Attributes:
        roots: objects that lead to the state, by name; the update itself comes first.
        alone: names that parameters must not share, because their values change in different ways.
    """

    roots: Sequence[tuple[str, Any]]
    module: nn.Module
    inputs: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    alone: set[str] = field(default_factory=set)

    def build(self) -> TracedUpdate | None:
        """Trace the update; return None if a shared name must be split, to be called again."""
        self.parameters = {id(p): name for name, p in self.module.named_parameters()}
        self.ways = Gradients(self.module, self.gradients)
        self.taken = {*self.parameters.values(), *self.inputs}
        self.places_of: dict[Key, set[str]] = {}
        reach = Reach(self.roots)
        reach.keep()
        self.names = {key_of(t): f"{name}{GRADIENT_SUFFIX}" for name, t in self.gradients.items()}
        names = dict(self.names)
        for name, tensor in {**self.inputs, **tensors_of(self.module)}.items():
            names[key_of(tensor)] = name
        self._name_places(reach, names)
        self.tracer = Tracer(self.roots[0][1], reach, names)
        self.rates = Rates(
            reach=reach,
            parameters=self.parameters,
            dtype=_rate_type(self.module),
            named=lambda: self._name_places(reach, names),
            free=self._free_rate,
        )
        outcome, installed, initial, started = self._runs()
        self.ways.check()
        return self._finished(outcome, installed, initial, started)

    # -- the runs ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _hooked(self, run: Any) -> Iterator[None]:
        with self.ways.watched(run), self.rates.hooked(self.rates.as_input(run)):
            yield

    def _runs(self) -> tuple[UpdateOutcome, dict[Path, Installed], dict[Path, Tensor], bool]:
        """Trace the runs; return (outcome, state by place, initial values, need of `started`)."""
        tracer = self.tracer
        numbers: dict[Path, Installed] = {}
        is_trial = True
        while True:
            self._forget_rates()
            first = tracer.run(numbers, self._hooked, is_trial=is_trial)
            before = tracer.reach.places()
            more = {
                path
                for path in first.places.keys() - numbers.keys()
                if path in before and isinstance(before[path].value, int | float)
            }
            if not more and not is_trial:
                break
            is_trial = bool(more)
            self._forget_rates()  # numbers that became state take their names first
            numbers |= self._installed({path: before[path].value for path in more})
        values = {path: _number(before[path].value) for path in numbers}
        if not first.created:
            return first, numbers, values, False
        made = {path: node.meta["val"] for path, node in first.created.items()}
        installed = numbers | self._installed(made, first.created)
        second = tracer.run(installed, self._hooked)
        return self._joined(first, second, installed, values)

    def _joined(
        self,
        first: UpdateOutcome,
        second: UpdateOutcome,
        installed: dict[Path, Installed],
        values: dict[Path, Tensor],
    ) -> tuple[UpdateOutcome, dict[Path, Installed], dict[Path, Tensor], bool]:
        """Express the first run as the second on initial values; else select by `started`."""
        tracer = self.tracer
        put: dict[fx.Node, fx.Node] = {}
        for path, node in first.created.items():
            item = installed[path]
            value = self.rates.value_of(tracer, node)
            zeros = torch.zeros((), dtype=item.dtype).expand(item.shape)
            values[path] = zeros if value is None else value
            into = tracer.input(item.name, item.shape, item.dtype)
            put[into] = tracer.merged.full(0, into.meta["val"]) if value is None else node
            if path in tracer.absent:
                put[tracer.absent[path]] = put[into]
        one, other = flat(tracer, first, second), flat(tracer, second, first)
        for is_simplified in (False, True):
            again = substituted(tracer.merged, other, put, is_simplified=is_simplified)
            if again == substituted(tracer.merged, one, put, is_simplified=is_simplified):
                return second, installed, values, False
        if tracer.absent:
            raise UpdateRefused(
                "it creates state in one branch only, unlike a later step: take one step in "
                "PyTorch before the export"
            )
        flag = tracer.input(STARTED, (), torch.bool)
        return either(tracer, flag, second, first), installed, values, True

    def _installed(
        self, made: Mapping[Path, Any], nodes: Mapping[Path, fx.Node] | None = None
    ) -> dict[Path, Installed]:
        """Return an input for each place: a tensor of the given shape and type, or a number."""
        same = {p: (nodes or {}).get(p, value) for p, value in made.items()}
        names = self._shared_names(same)
        found: dict[Path, Installed] = {}
        for path, value in made.items():
            is_tensor = isinstance(value, Tensor)
            found[path] = (
                Installed(names[path], tuple(value.shape), value.dtype)
                if is_tensor
                else Installed(names[path])
            )
        return found

    # -- names ---------------------------------------------------------------------------------

    def _name_places(self, reach: Reach, names: dict[Key, str]) -> None:
        """Name the caller's tensors, each by the first place that holds it."""
        held = {
            path: place.value
            for path, place in reach.places().items()
            if isinstance(place.value, Tensor) and key_of(place.value) not in names
        }
        same = {p: (t.dim(), t.dtype, _value(t)) for p, t in held.items()}
        for path, name in self._shared_names(same).items():
            names.setdefault(key_of(held[path]), name)
            self.places_of.setdefault(key_of(held[path]), set()).add(name)

    def _shared_names(self, values: Mapping[Path, Any]) -> dict[Path, str]:
        """Return a name for each place; a scalar equal for all parameters has a single name."""
        groups: dict[Any, list[Path]] = {}
        for path in values:
            groups.setdefault(_group(path), []).append(path)
        names: dict[Path, str] = {}
        for group, paths in groups.items():
            alike = {_scalar(values[path]) for path in paths}
            name = "" if group is None else str(group[-1])
            is_shared = group is not None and len(alike) == 1 and None not in alike
            if is_shared and name not in self.alone:
                names |= dict.fromkeys(paths, self._free(name))
                continue
            names |= {path: self._free(name_of(path, self.parameters)) for path in paths}
        return names

    def _free_rate(self, rate: Any) -> str:
        """Return a name for a learning rate's input; a tensor that is the rate loses its own name."""
        if isinstance(rate, Tensor):
            self.taken -= self.places_of.get(key_of(rate), set())
        return self._free(LEARNING_RATE)

    def _forget_rates(self) -> None:
        """Free the names of rates, some of which may become state in the next run."""
        self.taken -= self.rates.forget()
        self.taken = self.taken.union(*self.places_of.values())

    def _free(self, name: str) -> str:
        """Take and return the name, or the first free one derived from it."""
        found, count = name, 0
        while found in self.taken:
            count += 1
            found = f"{name}_{count}"
        self.taken.add(found)
        return found

    # -- the result ----------------------------------------------------------------------------

    def _finished(
        self,
        outcome: UpdateOutcome,
        installed: Mapping[Path, Installed],
        initial: Mapping[Path, Tensor],
        started: bool,
    ) -> TracedUpdate | None:
        tracer = self.tracer
        places = tracer.reach.places()
        updated: dict[str, fx.Node] = {}
        state: dict[str, State] = {}
        module_names = {key_of(t): n for n, t in tensors_of(self.module).items()}
        moved: dict[Key, tuple[Path, fx.Node]] = {}
        for path, node in outcome.places.items():
            if path in installed:
                item = installed[path]
                into = tracer.input(item.name, item.shape, item.dtype)
                made = State(name=item.name, node=into, new=node, initial=initial[path], path=path)
                if state.setdefault(item.name, made).new is not node:
                    return self._apart(item.name)
            elif path in places and isinstance(places[path].value, Tensor):
                moved[key_of(places[path].value)] = path, node
            elif path in places and isinstance(places[path].value, int | float):
                raise UpdateRefused(
                    f"it changes the number {name_of(path, self.parameters)!r} in some steps only"
                )
        for key in {**outcome.leaves, **moved}:
            path, node = moved.get(key) or (None, outcome.leaves[key])
            leaf, into = tracer.leaves.get(key), None
            if leaf is None or node is (into := tracer.input_of(key)):
                continue
            if path is not None:
                self._check_alone(path, node, outcome, places)
            if key in module_names:
                updated[module_names[key]] = node
            elif key not in self.names:
                made = State(
                    name=leaf.name, node=into, new=node, initial=leaf.tensor, path=path, key=key
                )
                if state.setdefault(leaf.name, made).new is not node:
                    return self._apart(leaf.name)
        if started:
            flag = tracer.input(STARTED, (), torch.bool)
            yes = tracer.merged.constant(torch.tensor(True))
            state[STARTED] = State(name=STARTED, node=flag, new=yes, initial=torch.tensor(False))
        return self._written(updated, state, outcome.results, installed)

    def _check_alone(
        self, path: Path, node: fx.Node, outcome: UpdateOutcome, places: Mapping[Path, ValuePlace]
    ) -> None:
        """Raise UpdateRefused where the tensor that a place loses stays in another place."""
        tensor = places[path].value
        for other, place in places.items():
            is_shared = isinstance(place.value, Tensor) and key_of(place.value) == key_of(tensor)
            if is_shared and outcome.places.get(other) is not node:
                one, beside = (name_of(p, self.parameters) for p in (path, other))
                raise UpdateRefused(
                    f"it replaces the tensor in {one!r}, which {beside!r} holds, too: give each a "
                    "tensor of its own (clone())"
                )

    def _apart(self, name: str) -> None:
        """Give each parameter its own name for a value that differs between parameters."""
        self.alone.add(name)

    def _written(
        self,
        updated: dict[str, fx.Node],
        state: dict[str, State],
        results: Mapping[str, fx.Node],
        installed: Mapping[Path, Installed],
    ) -> TracedUpdate:
        tracer = self.tracer
        if not updated:
            raise UpdateRefused("it changes no parameter of the module")
        state = needed(state, (*updated.values(), *results.values()))
        for name, value in self.rates.values.items():
            node = tracer.input(name, (), self.rates.dtype)
            initial = torch.tensor(value, dtype=self.rates.dtype)
            state[name] = State(name=name, node=node, new=None, initial=initial)
        outputs = [*updated.values(), *results.values()]
        outputs += [item.new for item in state.values() if item.new is not None]
        graph = tracer.merged.graph
        graph.output(tuple(dict.fromkeys(outputs)))
        graph.eliminate_dead_code()
        for part in graph.find_nodes(op="get_attr"):
            if isinstance(
                getattr(tracer.merged.root, str(part.target)), FakeTensor | FunctionalTensor
            ):
                raise UpdateRefused(
                    "it keeps a tensor where the export does not look (an object with __slots__, "
                    "a class, an iterator): keep it in an attribute of an object, a list or a dict"
                )
        return self._with_constants(updated, state, results)

    def _with_constants(
        self,
        updated: Mapping[str, fx.Node],
        state: Mapping[str, State],
        results: Mapping[str, fx.Node],
    ) -> TracedUpdate:
        tracer = self.tracer
        fed: dict[str, fx.Node] = {}
        constants: dict[fx.Node, Tensor] = {}
        of_step = {**self.names, **{key_of(t): n for n, t in tensors_of(self.module).items()}}
        of_step |= {key_of(t): n for n, t in self.inputs.items()}
        for key, leaf in tracer.leaves.items():
            node = tracer.input_of(key)
            if key in of_step:
                fed[of_step[key]] = node
            elif leaf.name not in state and node.users:
                constants[node] = leaf.tensor
        return TracedUpdate(
            module=fx.GraphModule(tracer.merged.root, tracer.merged.graph),
            fed=fed,
            constants=constants,
            state=tuple(state.values()),
            updated=updated,
            results=results,
            rates=self.rates,
            update=self.roots[0][1],
            tracer=tracer,
        )


def _rate_type(module: nn.Module) -> torch.dtype:
    """Return the type of learning rates: float64 if a parameter has it, else float32."""
    kinds = {parameter.dtype for parameter in module.parameters()}
    return torch.float64 if torch.float64 in kinds else torch.float32


def _number(value: float) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


def _value(tensor: Tensor) -> Any:
    """Return the element of a scalar; None for a larger tensor or one without a value."""
    is_known = not tensor.dim() and not tensor.is_meta and type(tensor) in (Tensor, nn.Parameter)
    with plainly():
        return tensor.item() if is_known else None


def _group(path: Path) -> Any:
    """Return a key shared by the places of an optimizer's state that differ only in the parameter."""
    if len(path) > 2 and isinstance(path[-2], Tensor) and path[-3] == "state":
        return (*path[:-2], path[-1])
    return None


def _scalar(value: Any) -> Any:
    """Return a key that identifies a scalar; None for other values."""
    if isinstance(value, fx.Node):
        return value if not value.meta["val"].dim() else None
    if isinstance(value, tuple):
        dims, *rest = value
        return tuple(rest) if not dims and rest[-1] is not None else None
    return value if isinstance(value, int | float) else None
