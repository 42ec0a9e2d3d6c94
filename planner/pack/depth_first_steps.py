"""The compiled steps of the depth-first search for offsets; `planner.pack.depth_first` explains them."""

from __future__ import annotations

import numba
import numpy as np

from planner.pack.depth_first_arrays import (
    BRIDGES,
    CHOICES,
    EXHAUSTED,
    FLOOR,
    HELD,
    LOOSE,
    LOW,
    LOW_2,
    LOW_OF,
    NEVER,
    ORIGIN,
    OUT_OF_STATES,
    PACKED_ALL,
    PLACED,
    REST,
    STATUS,
    TOP,
    TOP_2,
    TOP_OF,
    Levels,
    Pick,
    Tables,
)
from planner.processes.compiled import INNER

_ROUNDS = 4  # of raising loose buffers one by one, before all are at once


@numba.njit(**INNER)
def _aligned(t: Tables, offset: int, i: int) -> int:
    """The least offset from this one on at which buffer i may lie."""
    return -(-offset // t.alignment[i]) * t.alignment[i]


@numba.njit(**INNER)
def _survey(t: Tables, state: np.ndarray, sections: np.ndarray, s: int) -> tuple[int, int, int]:
    """Bring the rows of section s up to date: (limit, lowest top of those that can be lowest, whose)."""
    limit = t.capacity - sections[REST, s]
    low = low_2 = top = top_2 = first_top = NEVER
    low_of = top_of = first_of = -1
    choices = 0
    for m in range(t.member_at[s], t.member_at[s + 1]):
        i = t.member[m]
        if state[STATUS, i] == PLACED:
            continue
        floor = state[FLOOR, i]
        end = floor + t.size[i]
        if floor < low:
            low_2, low, low_of = low, floor, i
        elif floor < low_2:
            low_2 = floor
        if end < top:
            top_2, top, top_of = top, end, i
        elif end < top_2:
            top_2 = end
        if floor <= limit:
            choices += 1
            if end < first_top:
                first_top, first_of = end, i
    sections[LOW, s], sections[LOW_OF, s], sections[LOW_2, s] = low, low_of, low_2
    sections[TOP, s], sections[TOP_OF, s], sections[TOP_2, s] = top, top_of, top_2
    sections[CHOICES, s] = choices
    return limit, first_top, first_of


@numba.njit(**INNER)
def _lift(t: Tables, lv: Levels, level: int, i: int, offset: int, status: int) -> bool:
    """Raise the floor of an open buffer; whether it still has a place."""
    lv.buffers[level, FLOOR, i] = offset
    lv.buffers[level, STATUS, i] = status
    for s in range(t.first[i], t.last[i]):
        lv.touched[s] = 1
    return offset <= t.highest[i]


@numba.njit(**INNER)
def _lowest_beside(t: Tables, sections: np.ndarray, i: int) -> int:
    """The lowest top of the open buffers beside i, as last surveyed."""
    lowest = NEVER
    for s in range(t.first[i], t.last[i]):
        top = sections[TOP_2, s] if sections[TOP_OF, s] == i else sections[TOP, s]
        lowest = min(lowest, top)
    return lowest


@numba.njit(**INNER)
def _hold(t: Tables, lv: Levels, level: int) -> int:
    """Raise each loose buffer to where a chain of others, the first of them held, can hold it.

    Two loose buffers side by side would otherwise raise each other step by step. The lowest tops are
    shortest paths from those of the buffers held (Dijkstra, 1959). How many
    were raised; -1 for a dead end.
    """
    state = lv.buffers[level]
    begin, end = lv.begin[level], lv.end[level]
    count = len(t.size)
    floors = np.full(count, NEVER, dtype=np.int64)
    is_done = np.zeros(count, dtype=np.uint8)
    for i in range(count):
        if not begin <= t.first[i] < end or state[STATUS, i] == PLACED:
            is_done[i] = 1
        elif state[STATUS, i] == HELD:
            floors[i] = state[FLOOR, i]
    lifted = 0
    while True:
        lowest, top = -1, NEVER
        for i in range(count):
            if not is_done[i] and floors[i] + t.size[i] < top:
                lowest, top = i, floors[i] + t.size[i]
        if lowest < 0:
            break
        is_done[lowest] = 1
        if floors[lowest] > state[FLOOR, lowest]:
            if not _lift(t, lv, level, lowest, floors[lowest], LOOSE):
                return -1
            lifted += 1
        for m in range(t.beside_at[lowest], t.beside_at[lowest + 1]):
            i = t.beside[m]
            if not is_done[i] and state[STATUS, i] == LOOSE:
                floors[i] = min(floors[i], _aligned(t, max(state[FLOOR, i], top), i))
    for i in range(count):
        if not is_done[i]:  # no chain holds it
            return -1
    return lifted


@numba.njit(**INNER)
def _settle(t: Tables, lv: Levels, level: int) -> bool:
    """Work out what follows in the part at hand; False for a dead end."""
    state, sections = lv.buffers[level], lv.sections[level]
    begin, end = lv.begin[level], lv.end[level]
    changed = True
    rounds = 0
    while changed:
        changed = False
        rounds += 1
        for s in range(begin, end):
            while lv.touched[s]:
                lv.touched[s] = 0
                limit, first_top, first_of = _survey(t, state, sections, s)
                if sections[LOW_OF, s] < 0:
                    continue
                if sections[LOW, s] > limit:
                    return False
                alone = sections[CHOICES, s] == 1
                for m in range(t.member_at[s], t.member_at[s + 1]):
                    i = t.member[m]
                    floor = state[FLOOR, i]
                    if state[STATUS, i] == PLACED or floor >= first_top or i == first_of:
                        continue
                    if floor > limit or alone:
                        offset = _aligned(t, first_top, i)
                        if not _lift(t, lv, level, i, offset, LOOSE):
                            return False
                        changed = True
        if rounds > _ROUNDS:
            lifted = _hold(t, lv, level)
            if lifted < 0:
                return False
            changed = changed or lifted > 0
            continue
        for i in range(len(t.size)):
            if state[STATUS, i] != LOOSE or not begin <= t.first[i] < end:
                continue
            lowest = _lowest_beside(t, sections, i)
            if lowest == NEVER:  # nothing left that could hold it
                return False
            if lowest > state[FLOOR, i]:
                offset = _aligned(t, lowest, i)
                if offset > state[FLOOR, i]:
                    if not _lift(t, lv, level, i, offset, LOOSE):
                        return False
                    changed = True
    return True


@numba.njit(**INNER)
def _digest(t: Tables, lv: Levels, level: int) -> np.uint64:
    """Digest of the open buffers' floors in the part at hand (sum of mixed words: Steele et al., "Fast
    splittable pseudorandom number generators", OOPSLA 2014)."""
    digest = np.uint64(1)
    begin, end = lv.begin[level], lv.end[level]
    for i in range(len(t.size)):
        if lv.buffers[level, STATUS, i] == PLACED or not begin <= t.first[i] < end:
            continue
        word = np.uint64(i) * np.uint64(0x9E3779B97F4A7C15)
        word += np.uint64(lv.buffers[level, FLOOR, i]) * np.uint64(0xD1B54A32D192ED03)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        digest += word ^ (word >> np.uint64(31))
    return digest


@numba.njit(**INNER)
def _choose(t: Tables, lv: Levels, level: int, rank: np.ndarray, pick: int) -> bool:
    """Choose the buffer to decide about; False if there is none."""
    state, sections = lv.buffers[level], lv.sections[level]
    begin, end = lv.begin[level], lv.end[level]
    best = -1
    best_choices = best_floor = best_rank = NEVER
    for i in range(len(t.size)):
        if state[STATUS, i] != HELD or not begin <= t.first[i] < end:
            continue
        floor = state[FLOOR, i]
        top = floor + t.size[i]
        lies_lowest = is_free = True
        choices = NEVER
        for s in range(t.first[i], t.last[i]):
            below = sections[TOP_2, s] if sections[TOP_OF, s] == i else sections[TOP, s]
            if below <= floor:
                lies_lowest = False
                break
            other = sections[LOW_2, s] if sections[LOW_OF, s] == i else sections[LOW, s]
            is_free = is_free and other >= top
            choices = min(choices, sections[CHOICES, s])
        if not lies_lowest:
            continue
        if is_free:
            lv.chosen[level] = i
            lv.is_free[level] = 1
            return True
        if pick == Pick.LOWEST:
            choices = 0
        if choices > best_choices or (choices == best_choices and floor > best_floor):
            continue
        if choices < best_choices or floor < best_floor or rank[i] < best_rank:
            best, best_choices, best_floor, best_rank = i, choices, floor, rank[i]
    lv.chosen[level] = best
    lv.is_free[level] = 0
    return best >= 0


@numba.njit(**INNER)
def _place(t: Tables, lv: Levels, level: int) -> bool:
    """Begin the next level: the chosen buffer lies at its floor. False for a dead end."""
    below = level + 1
    for row in range(lv.buffers.shape[1]):
        for i in range(lv.buffers.shape[2]):
            lv.buffers[below, row, i] = lv.buffers[level, row, i]
    for row in range(lv.sections.shape[1]):
        for s in range(lv.sections.shape[2]):
            lv.sections[below, row, s] = lv.sections[level, row, s]
    lv.begin[below], lv.end[below] = lv.begin[level], lv.end[level]
    lv.is_root[below] = 0
    chosen = lv.chosen[level]
    state, sections = lv.buffers[below], lv.sections[below]
    state[STATUS, chosen] = PLACED
    top = state[FLOOR, chosen] + t.size[chosen]
    for s in range(t.first[chosen], t.last[chosen]):
        sections[REST, s] -= t.size[chosen]
        sections[BRIDGES, s] -= s > t.first[chosen]
        lv.touched[s] = 1
    for m in range(t.beside_at[chosen], t.beside_at[chosen + 1]):
        i = t.beside[m]
        if state[STATUS, i] == PLACED:
            continue
        offset = _aligned(t, top, i)
        if offset == state[FLOOR, i]:
            state[STATUS, i] = HELD
        elif offset > state[FLOOR, i] and not _lift(t, lv, below, i, offset, HELD):
            return False
    return True


@numba.njit(**INNER)
def _put_off(t: Tables, lv: Levels, level: int) -> bool:
    """The other branch: the chosen buffer, and any just like it, lies higher. False for a dead end."""
    state, sections = lv.buffers[level], lv.sections[level]
    chosen = lv.chosen[level]
    floor = state[FLOOR, chosen]
    for m in range(t.member_at[t.first[chosen]], t.member_at[t.first[chosen] + 1]):
        i = t.member[m]
        if t.kind[i] == t.kind[chosen] and state[STATUS, i] == HELD and state[FLOOR, i] == floor:
            lowest = _lowest_beside(t, sections, i)
            if lowest == NEVER:
                return False
            if not _lift(t, lv, level, i, _aligned(t, lowest, i), LOOSE):
                return False
    return True


@numba.njit(**INNER)
def _enter(t: Tables, lv: Levels, level: int) -> bool:
    """Choose the part to search at a level just begun; False if nothing is open.

    The part of the level before, if it is still one; else one of the latest that were cut off, the
    tightest first.
    """
    if level == 0:
        return True
    sections = lv.sections[level]
    cut = False
    chosen = lv.chosen[level - 1]
    for s in range(t.first[chosen] + 1, t.last[chosen]):
        cut = cut or sections[BRIDGES, s] == 0
    is_done = True
    for s in range(lv.begin[level], lv.end[level]):
        is_done = is_done and sections[REST, s] == 0
        if cut:
            sections[ORIGIN, s] = level - 1
    if not cut and not is_done:
        return True
    lv.is_root[level] = 1
    best_begin, best_origin, best_full = -1, -1, -1
    s = 0
    while s < sections.shape[1]:
        if sections[REST, s] == 0:
            s += 1
            continue
        part = s
        full = 0
        while s == part or (s < sections.shape[1] and sections[BRIDGES, s] > 0):
            full = max(full, sections[LOW, s] + sections[REST, s])
            s += 1
        origin = sections[ORIGIN, part]
        if origin > best_origin or best_begin < 0 or (origin == best_origin and full > best_full):
            best_begin, best_origin, best_full = part, origin, full
            lv.begin[level], lv.end[level] = part, s
    return best_begin >= 0


@numba.njit(cache=True, nogil=True)
def search(t: Tables, lv: Levels, rank: np.ndarray, pick: int, most: int) -> int:
    """Look at up to `most` states, going on from the cursor; how it ended."""
    level, alive, is_new = int(lv.cursor[0]), lv.cursor[1] != 0, lv.cursor[2] != 0
    for _ in range(most):
        alive = alive and _settle(t, lv, level)
        if alive:
            if is_new and not _enter(t, lv, level):
                lv.cursor[0] = level
                return PACKED_ALL
            digest = _digest(t, lv, level)
            if is_new:
                lv.digest[level] = digest
            place = digest & np.uint64(len(lv.failed) - 1)
            alive = lv.failed[place] != digest and _choose(t, lv, level, rank, pick)
        if alive:
            alive = _place(t, lv, level)
            level += 1
            is_new = True
            continue
        if not is_new:  # both branches failed
            lv.failed[lv.digest[level] & np.uint64(len(lv.failed) - 1)] = lv.digest[level]
        lv.touched[:] = 0
        if lv.is_root[level]:
            level = int(lv.sections[level, ORIGIN, lv.begin[level]])
        else:
            level -= 1
        if level < 0:
            return EXHAUSTED
        alive = not lv.is_free[level] and _put_off(t, lv, level)
        is_new = False
    lv.cursor[0], lv.cursor[1], lv.cursor[2] = level, alive, is_new
    return OUT_OF_STATES
