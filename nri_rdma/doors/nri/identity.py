"""The name and the index under which the plugin registers with the runtime. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

NAME_VARIABLE, INDEX_VARIABLE, SOCKET_VARIABLE = "NRI_PLUGIN_NAME", "NRI_PLUGIN_IDX", "NRI_PLUGIN_SOCKET"
"""The environment variables that the runtime sets for a plugin which it starts. It sets no others."""

DEFAULT_NAME, DEFAULT_INDEX = "nri-rdma", "90"
"""The defaults. The runtime calls plugins in the order of their index, so a late plugin sees what others injected."""

_NUMBERED = re.compile(r"([0-9]{2})-(.+)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The plugin's name (without index) and its index of two digits."""

    name: str
    index: str


def identify(*, name: str | None, index: str | None, environment: Mapping[str, str], program: str) -> Identity:
    """Choose the plugin's name and index: the settings `name` and `index`, otherwise the variables that the runtime
    sets, otherwise the program's file name (`NN-name`), otherwise the defaults.

    containerd 1.7.0 to 1.7.6 (NRI 0.3) puts the index in front of the name in its variable; it is removed there.
    """
    its_index = environment.get(INDEX_VARIABLE, "")
    its_name = environment.get(NAME_VARIABLE, "")
    if its_index:
        its_name = its_name.removeprefix(f"{its_index}-")
    numbered = _NUMBERED.fullmatch(PurePath(program).name)
    from_program = (numbered[1], numbered[2]) if numbered else ("", "")
    return Identity(
        name=name or its_name or from_program[1] or DEFAULT_NAME,
        index=index or its_index or from_program[0] or DEFAULT_INDEX,
    )
