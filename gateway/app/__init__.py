"""The composition root: the one place where the rooms are built from the config and joined.

* :mod:`gateway.app.gateway`: :class:`Gateway` owns everything that lives as long as the process: stores, the meter,
  upstreams, kernels, and the two ASGI applications in front of them.
* :mod:`gateway.app.catalogue`: keeping the catalogue: what the upstreams tell becomes one immutable value.
* :mod:`gateway.app.operators`: what operators see of it.

Nothing below may import this; only the command line does.
"""

from gateway.app.gateway import Gateway, http_protocol
from gateway.app.operators import describe_upstream, kernel_problems

__all__ = ["Gateway", "describe_upstream", "http_protocol", "kernel_problems"]
