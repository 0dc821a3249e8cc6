"""What the upstreams offer: records of their tools, their names, who sees which, how they are written and found.

Everything here is pure: values in, values out, no IO, no clock. Texts and schemas in it were written by strangers.

The map, from the wire to the model:

* :mod:`gateway.catalog.tool`: the record of one tool, :class:`~gateway.catalog.tool.Tool`.
* :mod:`gateway.catalog.build`: a ``tools/list`` and its overrides → records; broken entries are named and left out;
  :mod:`gateway.catalog.headermarks` takes out what is meant for connectors alone.
* :mod:`gateway.catalog.names`: the three spellings of a tool, unique whatever arrives in whatever order.
* :mod:`gateway.catalog.snapshot`: the :class:`~gateway.catalog.snapshot.Catalog`, an immutable whole with a version.
* :mod:`gateway.catalog.view`: THE decision what a tenant sees; lists, search and calls all ask it.
* :mod:`gateway.catalog.search`: a question → tools, over :mod:`gateway.catalog.index` (BM25F),
  :mod:`gateway.catalog.words` (text → terms) and :mod:`gateway.catalog.synonyms`.
* :mod:`gateway.catalog.pystub`: a tool as Python, over :mod:`gateway.catalog.schema` (JSON Schema → types),
  :mod:`gateway.catalog.pytypes` (types → Python) and :mod:`gateway.catalog.text` (hygiene of foreign text).
* :mod:`gateway.catalog.arguments`: arguments checked before a call, with errors that a model can act on, over
  :mod:`gateway.catalog.checkable` (a schema made safe to evaluate).

The two types to know are :class:`~gateway.catalog.snapshot.Catalog` and :class:`~gateway.catalog.view.TenantView`.
Never here: connections, kernels, HTTP, budgets of answers (those are the facade's).
"""
