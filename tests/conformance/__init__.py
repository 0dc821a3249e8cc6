"""The MCP conformance suite (npm ``@modelcontextprotocol/conformance``) against this gateway and its connectors.

===================  =================================================================================================
``bars``             what is run against what: the bars and their requirement sets
``suite``            the suite itself: installing it, running it, reading its verdict
``serve``            a gateway that needs no key, because the suite cannot send one
``everything``       the upstream with every fixture that the suite asks for, over ``fixture_tools`` and ``asking``
``upstream_driver``  our connector as the client under test
===================  =================================================================================================

``make conformance`` runs them all and prints a table; ``python -m tests.conformance BAR …`` runs some. Each run has a
file of expected failures, ``expected-failures-BAR-REVISION.yml``: what fails and is not in it, and what is in it and
passes, both turn the run red. Whoever builds a feature takes its lines out.
"""
