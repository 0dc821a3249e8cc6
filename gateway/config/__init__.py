"""``gateway.yaml`` → frozen, validated values, or every mistake of the file at once with its line and column.

==================  ====================================================================================================
``model``           :class:`~gateway.config.model.GatewayConfig`: what the file means; the only module others need daily
``units``           durations and sizes as people write them
``loader``          :func:`~gateway.config.loader.load`: file → :class:`~gateway.config.loader.Loaded`, or ConfigError
``problem``         :class:`~gateway.config.problem.Problem`: one mistake, ``file:line:col: path: message``
``document``        strict YAML → plain values and their positions; what YAML readers disagree about is an error
``variables``       ``${VAR}``, ``${VAR:-default}``, ``${file:/path}`` in string values
``messages``        pydantic's errors as plain sentences
``checks``          what must fit together: tenants and upstreams, kernels, the chain of deadlines
``schema``          the JSON Schema for editors, committed as ``gateway.schema.json``
``template``        the commented file that ``gateway init`` writes
``importer``        ``mcpServers`` of other clients → an ``upstreams:`` block (``jsonc``, ``literal_secrets`` serve it)
==================  ====================================================================================================

The way of a file: text → ``document`` → ``variables`` → ``model`` → ``checks``. Each step reports what it finds and
hands on what is left, so that one run shows all mistakes, in the order of the file.

How variables work, in one place:

* They are expanded in every string value and never in keys; what a variable holds is text, never YAML.
* ``${VAR}`` is an error when VAR is not set. ``${VAR:-default}`` takes the default then. A variable that is set to
  nothing counts as set in both (a shell's ``:-`` would take the default).
* ``${file:/absolute/path}`` is the content of that file without one trailing line break, read at load.
* ``$${`` is a literal ``${``; any other ``$`` is itself, so ``$VAR`` is the text ``$VAR``.
* An unquoted value that is one variable and nothing else may stand where a number or a boolean is wanted
  (``port: ${PORT:-8080}``); between quotes it is text.

Never in here: anything that opens a connection or starts a process; any other room of the gateway; a resolved value in
an error, a log or a repr.
"""
