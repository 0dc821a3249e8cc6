"""Making foreign text fit to be shown: one line, bounded, no control characters, no credentials."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "•••"
_SHORTEST = 4  # shorter values are words and numbers that stand everywhere; masking them would only spoil the text

_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]+"
)
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_USERINFO = re.compile(r"://[^\s/@]{1,512}@")


class Redactor:
    """Knows the secrets of one upstream and removes them from text.

    Args:
        secrets: values from the configuration: environment, headers, the credentials of a URL. The words of a value
            count too, so that ``Bearer abcd`` also hides ``abcd``.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        words = {word for secret in secrets for word in (secret, secret.strip(), *secret.split())}
        # longest first: a secret that contains another one must not leave its remains
        self._secrets = sorted((word for word in words if len(word) >= _SHORTEST), key=len, reverse=True)

    def __repr__(self) -> str:
        return f"Redactor({len(self._secrets)} secrets)"

    def hide(self, text: str) -> str:
        """``text`` without secrets and without the user part of any URL."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return _USERINFO.sub(f"://{MASK}@", text)

    def one_line(self, text: str, limit: int = 300) -> str:
        """``text`` as one clean line of at most ``limit`` characters; cut at the end."""
        line = " ".join(_CONTROL.sub(" ", _ANSI.sub("", self.hide(text))).split())
        return line if len(line) <= limit else line[: limit - 1] + "…"
