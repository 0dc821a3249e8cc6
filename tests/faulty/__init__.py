"""The faulty upstream: one program that behaves like an MCP server, with any mixture of faults.

``python -m tests.faulty [switches]`` (or the path of this folder instead of ``-m``) speaks stdio; ``--http PORT``
streamable HTTP on ``127.0.0.1`` at ``/mcp``. ``--help`` lists the switches. Without faults it is a correct server in
both protocol eras. It writes and reads JSON-RPC as bytes with the standard library only: an SDK would refuse to send
many of these faults, or repair them on the way.

==================  ====================================================================================
``faults``          one fault: its value, its limits, how it is written
``switches``        the command line: every switch, parsed into one frozen value
``rpc``             JSON-RPC as bytes: reading a message without losing its text, bodies of any size
``recording``       what has happened: counters, the plan of faults for a request, the request log, ``GET /state``
``catalogue``       which tools are listed, in which pages, and how the list changes
``tools``           what a tool does
``library``         what else is offered: resources, a prompt, completion
``results``         how its outcome is written, truly or not
``era``             which era a request belongs to, and the checks a correct server makes
``server``          from a request to the messages that answer it; announcements to clients
``obstacles``       what a request meets before it is looked at: delay, silence, death
``replies``         how an answer is sent: twice, late, cut, under another id
``script``          exact bytes for what no switch covers
``channel``         what server and wires have in common
``stdio_wire``      lines on stdin and stdout, and their noise
``http1``           HTTP/1.1 framing, also for the companions of the tests
``http_wire``       streamable HTTP: sessions, JSON answers, event streams, broken connections
``control``         the control port: faults changed while running
``program``         start, children, end
==================  ====================================================================================

The value to know is :class:`~tests.faulty.recording.Plan`: when a request arrives it is decided once, from the switches
and their limits, what will go wrong with it; everything later only reads that plan. Never here: anything from
``gateway``, any dependency, any listener off loopback, anything random.

On stderr, before anything else: ``http 127.0.0.1:PORT/mcp`` with ``--http`` and ``control 127.0.0.1:PORT`` with
``--control``. The program ends when its stdin closes (stdio) and when its parent dies (both).
"""
