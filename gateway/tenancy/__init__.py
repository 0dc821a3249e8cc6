"""Who asks, how that is proven, and how much of the gateway they may use.

The map:

* :mod:`gateway.tenancy.tenant`: :class:`~gateway.tenancy.tenant.Tenant`, the frozen snapshot of one tenant of the
  config; :class:`~gateway.tenancy.tenant.Tenants`, all of them.
* :mod:`gateway.tenancy.keys`: the text of an API key: making, recognising and digesting it. No IO.
* :mod:`gateway.tenancy.store`: what is kept of a key, and the :class:`~gateway.tenancy.store.KeyStore` interface.
* :mod:`gateway.tenancy.sqlite_store`: keys in an SQLite file, shared by ``serve`` and ``gateway keys``.
* :mod:`gateway.tenancy.pepper`: the secret that key digests are made with.
* :mod:`gateway.tenancy.keyring`: issue, rotate and revoke keys; opens what ``state.keys`` names.
* :mod:`gateway.tenancy.authenticator`: headers → :class:`~gateway.tenancy.authenticator.Principal`, without IO on the
  way; revocations of other processes arrive within a second.
* :mod:`gateway.tenancy.limits`: rate limits, the daily token quota, execution slots.

The two types to know are ``Tenant`` (what the config grants) and ``Principal`` (who proved to be one of them).

Never here: what a tool is, how an answer looks on the wire, which patterns select which tools (the catalogue decides
that, for lists and calls alike). A key's text exists in memory only, between its making and its printing, or for the
one request that carries it; what is stored is a keyed digest.
"""
