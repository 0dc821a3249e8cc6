"""Series with bounded labels: a value that is in no known set never becomes a series of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Generic, TypeVar

from prometheus_client.metrics import MetricWrapperBase

OTHER = "_OTHER"

_Metric = TypeVar("_Metric", bound=MetricWrapperBase)
_Named = TypeVar("_Named")


class Children(Generic[_Metric]):
    """The bound children of one metric, found by label values of which each must be in its set.

    Args:
        allowed: for each label after ``fixed``, the values it may have; any other becomes ``_OTHER``.
        fixed: values of the first labels.
        capacity: so many different children; after that, ``_OTHER`` in all labels.
    """

    def __init__(
        self,
        metric: _Metric,
        allowed: tuple[Set[str], ...],
        fixed: tuple[str, ...] = (),
        *,
        capacity: int | None = None,
    ) -> None:
        self._metric = metric
        self._allowed = allowed
        self._fixed = fixed
        self._capacity = capacity
        self._bound: dict[tuple[str, ...], _Metric] = {}

    def allow(self, *allowed: Set[str]) -> None:
        """Change the sets; children whose value is no longer in them are forgotten."""
        self._allowed = allowed
        self._bound = {
            key: child
            for key, child in self._bound.items()
            if all(value in known or value == OTHER for value, known in zip(key, allowed, strict=True))
        }

    def get(self, *values: str) -> _Metric:
        key = tuple(value if value in known else OTHER for value, known in zip(values, self._allowed, strict=True))
        child = self._bound.get(key)
        if child is None:
            if self._capacity is not None and len(self._bound) >= self._capacity:
                key = (OTHER,) * len(self._allowed)
            child = self._bound[key] = self._metric.labels(*self._fixed, *key)
        return child


def rebind(
    bound: dict[str, _Named],
    names: Iterable[str],
    bind: Callable[[str], _Named],
    label: str,
    metrics: Iterable[MetricWrapperBase],
) -> dict[str, _Named]:
    """The metrics of ``names`` and of ``_OTHER``: kept where they are bound already, removed where the name is gone."""
    wanted = (*names, OTHER)
    for gone in bound.keys() - set(wanted):
        for metric in metrics:
            metric.remove_by_labels({label: gone})
    return {name: bound.get(name) or bind(name) for name in wanted}
