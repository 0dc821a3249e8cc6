"""Each ``golden/*.yaml`` ends with the errors that the loader reports for it, in this order and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.loader import ConfigError, load

FILES = sorted((Path(__file__).parent / "golden").glob("*.yaml"))
ENV = {"SET": "text", "EMPTY": ""}


@pytest.mark.case("CONFIG-01")
@pytest.mark.case("CONFIG-02")
@pytest.mark.case("CONFIG-07")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_mistake_is_reported_with_its_exact_place_in_the_order_of_the_file(path: Path) -> None:
    expected = path.read_text().partition("# errors:\n")[2].replace("#   ", f"{path}:").splitlines()
    with pytest.raises(ConfigError) as caught:
        load(path, ENV)
    assert str(caught.value).splitlines() == expected
