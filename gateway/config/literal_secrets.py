"""Which literal values of another client's config look like secrets. Rather one too many than one too few."""

from __future__ import annotations

import math
import re
from collections import Counter

_SECRET_NAME = re.compile(
    r"token|key|secret|passw|passwd|pwd|credential|authorization|cookie|dsn|connection.?string", re.IGNORECASE
)
_KNOWN_PREFIX = re.compile(
    r"(?:sk-|sk_|pk_|rk_|gh[opusr]_|github_pat_|glpat-|xox[abprs]-|xapp-|AKIA|ASIA|AIza|ya29\.|eyJ|hf_|npm_|pypi-"
    r"|ntn_|secret_|tvly-|fc-|lin_api_|figd_|dop_v1_|whsec_|cmg_).{8,}",
    re.DOTALL,
)
_DENSE = re.compile(r"[A-Za-z0-9+/=_.~-]{20,}")


def secret_name(name: str) -> bool:
    """Whether what goes by this name is usually secret: ``GITHUB_TOKEN``, ``Authorization``, ``--api-key``."""
    return _SECRET_NAME.search(name) is not None


def secret_value(value: str) -> bool:
    """Whether the value itself looks random: a well-known prefix, or letters and digits of high entropy."""
    if _KNOWN_PREFIX.fullmatch(value):
        return True
    if not _DENSE.fullmatch(value) or value.startswith(("/", "./", "../", "~")) or value.count("/") > 2:
        return False
    kinds = (str.islower, str.isupper, str.isdigit)
    mixed = sum(any(kind(character) for character in value) for kind in kinds)
    # hexadecimal digests stay just below 4 bits a character, mixed-case keys above; words and versions below 3.5
    return (mixed == 3 and _entropy(value) >= 3.5) or (
        re.fullmatch(r"[0-9a-fA-F-]{32,}", value) is not None and _entropy(value) >= 3.0
    )


def _entropy(value: str) -> float:
    """Bits a character."""
    return -sum(count / len(value) * math.log2(count / len(value)) for count in Counter(value).values())
