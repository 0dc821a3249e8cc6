"""The sandboxes: run one script that nobody trusts, and let it call functions of the host.

==============  ========================================================================================
``base``        **the interface**: :class:`Kernel`, :class:`ExecRequest` → :class:`ExecResult`, the caps
``registry``    engine name in ``gateway.yaml`` → kernel; one line per engine; what ``gateway doctor`` shows
``monty``       Python on pydantic-monty worker processes
``monty_os``    what a Python script sees of environment and files: the manifest's, nothing else
``monty_errors``  how each failure of that engine is told to the author of the script
``hints``       what to write instead of the Python that the engine does not know
``calls``       the scope that owns the host calls of one execution, for any engine
``encode``      values of a script → JSON, with caps
``logs``        what a script printed, bounded
==============  ========================================================================================

A kernel knows no MCP, no tenant and no upstream: it gets a script, a manifest and functions by name. Policy (which
functions, how many calls, which arguments) never lives here, because whatever runs beside a guest may be forged by it.
Guest code never runs in the gateway's own process. The README beside this file argues the decisions.
"""
