"""Combining at an owner: how partial results of several clusters become one, in the three modes of the design.

All modes: every sender cluster holds its partial cut over its borders. The owner's own members still hold raw input.

add     1. own partial: vendor reduce_scatter onto the borders
        2. the others' partials arrive at the borders that hold the same slots
        3. each border combines them in cluster order with its device's elementwise operation

border  1. own partial, onto the next member of the border communicator (rotation 1)
        2. the others' partials arrive at rotations 0, 2, 3 …, so that each member has at most one partial of a slot;
           where it has none, the identity
        3. the vendor's reduce_scatter in the border communicator sums them onto the borders
        Unequal borders take one partial a round, at rotation 0, since a rotated slot would load the wrong link.

fill    the same placement, all other ranks hold the identity, and the vendor's all_reduce over the whole cluster sums;
        every rank then has the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest

from ..plan.layouts import Borders, Everyone, Layout, balanced, combining_group
from ..plan.region import Region
from ..plan.steps import Action, Combine, Copy, Fill, Local, Scale, Transfer
from ..reduction import Reduction
from ..topo.model import Cluster


@dataclass(slots=True)
class Owner:
    """One region combined at one cluster.

    `partials` names, per sender cluster, the buffer in which its borders hold its partial. `raw` is the buffer of the
    owner's own unreduced data. The result goes to `result` at Borders(owner), or at every rank where `everywhere`
    is asked and the mode gives it for nothing; `gave_everywhere` says so.
    """

    cluster: Cluster
    region: Region
    partials: dict[int, str]
    raw: str
    result: str
    name: str
    scratch_free: bool = False
    """The raw data may be overwritten (it lies in the result buffer)."""
    stages: list[list[Action]] = field(default_factory=list)
    gave_everywhere: bool = False


def resolve(mode: str, cluster: Cluster) -> str:
    """The mode that a cluster can carry out: a vendor-only combine needs a second rank. `auto` adds."""
    if mode == "auto" or cluster.size == 1:
        return "add"
    return mode


def combine(owner: Owner, mode: str, reduction: Reduction | None, everywhere: bool) -> Owner:
    """Fill in `owner.stages`."""
    if mode == "add":
        _add(owner)
    else:
        _vendor(owner, mode, everywhere)
    if reduction is Reduction.AVG:
        layout: Layout = Everyone(owner.cluster.index) if owner.gave_everywhere else Borders(owner.cluster.index)
        owner.stages.append([Scale(owner.region, layout, owner.result)])
    return owner


def _arrive(owner: Owner, sender: int, rotation: int, target: str) -> Transfer:
    layout = Borders(owner.cluster.index, rotation)
    return Transfer(owner.region, Borders(sender), layout, owner.partials[sender], target)


def _add(owner: Owner) -> None:
    index, region, borders = owner.cluster.index, owner.region, Borders(owner.cluster.index)
    if owner.cluster.size == 1:
        own, reduced = owner.raw, []
    else:
        own = owner.result if owner.scratch_free else f"{owner.name}.own"
        reduced = [Local("reduce_scatter", index, region, borders, owner.raw, own)]
    inboxes = {sender: f"{owner.name}.from{sender}" for sender in owner.partials}
    sources = tuple({**inboxes, index: own}[cluster] for cluster in sorted([*inboxes, index]))
    owner.stages += [
        list(reduced),
        [_arrive(owner, sender, 0, inbox) for sender, inbox in inboxes.items()],
        [Combine(region, borders, sources, owner.result)],
    ]


def _vendor(owner: Owner, mode: str, everywhere: bool) -> None:
    cluster, region = owner.cluster, owner.region
    index, members = cluster.index, len(combining_group(cluster))
    latin = balanced(cluster)
    rotations = [place for place in range(members) if place != 1] if latin else [0]
    accumulated, aside = f"{owner.name}.sum", Borders(index, 1)
    owner.stages.append([Local("reduce_scatter", index, region, aside, owner.raw, accumulated)])
    senders = sorted(owner.partials)
    rounds = [senders[at : at + len(rotations)] for at in range(0, len(senders), len(rotations))]
    for number, arriving in enumerate(rounds):
        last = number == len(rounds) - 1
        slot = f"{owner.name}.slot{number}"
        group: Layout = Everyone(index, group=mode == "border")
        full = mode == "border" and latin and len(arriving) + 1 == members
        owner.stages.append([] if full else [Fill(region, group, slot)])
        owner.stages.append([Copy(region, aside, accumulated, slot)])
        owner.stages.append(
            [_arrive(owner, sender, rotation, slot) for sender, rotation in zip(arriving, rotations, strict=False)]
        )
        if mode == "border":
            layout, target = (Borders(index), owner.result) if last else (aside, accumulated)
            owner.stages.append([Local("reduce_scatter", index, region, layout, slot, target, group=True)])
        else:
            owner.stages.append([Local("all_reduce", index, region, Everyone(index), slot, slot)])
            if last:
                kept: Layout = Everyone(index) if everywhere else Borders(index)
                owner.stages.append([Copy(region, kept, slot, owner.result)])
                owner.gave_everywhere = everywhere
            else:
                owner.stages.append([Copy(region, aside, slot, accumulated)])


def together(parts: Iterable[list[list[Action]]]) -> list[list[Action]]:
    """Stages of independent parts, side by side."""
    rows: Iterable[tuple[list[Action], ...]] = zip_longest(*parts, fillvalue=[])
    return [[action for actions in row for action in actions] for row in rows]
