"""Which node keeps a copy of what each node holds: another one, if it can be in another failure domain."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["partners"]


def partners(domains: Sequence[str]) -> list[int]:
    """The partner of each node, by the failure domains (racks, switches) of all nodes in order.

    Every node is the partner of exactly one. Where no domain has more than half of the nodes, no node has a partner of
    its own domain: in the order of domains, the partner is as far away as the largest domain is long.

    >>> partners(["a", "a", "b", "b"]), partners(["a", "b", "c"])
    ([2, 3, 0, 1], [1, 2, 0])
    """
    members: dict[str, list[int]] = {}
    for node, domain in enumerate(domains):
        members.setdefault(domain, []).append(node)
    by_size = [node for group in sorted(members.values(), key=len, reverse=True) for node in group]
    shift = max(map(len, members.values())) % len(by_size) or min(1, len(by_size) - 1)
    ring = dict(zip(by_size, by_size[shift:] + by_size[:shift], strict=True))
    return [ring[node] for node in range(len(domains))]
