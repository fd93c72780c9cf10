"""Which tests `make test` runs, and which only `make test-all` does.

TEST-16 (only-one): a test is in `make test` if it is the only one that would notice some defect. The same test over
another face, phase, number of hosts, version or library has the marker `whole`, and says which it is. So has a
test that puts together, in a cluster, an application or an environment of its own, what others test in parts.
TEST-17 (faces): of a test over several faces, `make test` runs the jvm stage, and those that `differs` names. A test
without the jvm stage keeps its first face, so that none is left out by its faces alone.
TEST-18 (connect): a client of Spark Connect has only what `differs` names, in a process of its own.

A face is what ranks run over: local mode, with warm ranks or cold ones, or a stage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest

FACES = ("jvm", "python", "local", "local-cold", "connect")
# The parameters that may name one.
PARAMETERS = ("face", "over", "distributor", "stage", "spark")


def differs(*faces: str, why: str) -> pytest.MarkDecorator:
    """Keeps a test over these faces in `make test`: code that the jvm stage doesn't take is tested by it, which is
    `why`."""
    if unknown := set(faces) - set(FACES):
        raise ValueError(f"no faces: {', '.join(sorted(unknown))}; there are {', '.join(FACES)}")
    return pytest.mark.differs(*faces, why=why)


def whole(what: str) -> pytest.MarkDecorator:
    """Leaves a test to `make test-all`; `what` it is that another test has otherwise: `two hosts`."""
    return pytest.mark.whole(what)


def face_of(item: pytest.Item) -> str | None:
    """Over what a test runs, if its parameters say so."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    named = (parameters[name] for name in PARAMETERS if name in parameters)
    return next((value for value in named if value in FACES), None)


def faces_wanted(request: pytest.FixtureRequest, faces: Sequence[str]) -> list[str]:
    """Those of these faces over which tests of the module run now: what a driver that they share has to try."""
    wanted = {face_of(item) for item in request.session.items if item.path == request.path}
    return [face for face in faces if face in wanted]


def mark(items: Iterable[pytest.Item], *, connect: bool) -> None:
    """Gives the marker `whole` to what TEST-17 and TEST-18 leave to `make test-all`."""
    tests: dict[str, list[tuple[pytest.Item, str]]] = defaultdict(list)
    for item in items:
        if (face := face_of(item)) is not None:
            tests[item.nodeid.partition("[")[0]].append((item, face))
    for cases in tests.values():
        faces = [face for _, face in cases]
        kept = set() if connect else {"jvm" if "jvm" in faces else faces[0]}
        for marker in cases[0][0].iter_markers("differs"):
            kept |= {"connect"} & set(marker.args) if connect else set(marker.args)
        for item, face in cases:
            if face not in kept:
                item.add_marker(pytest.mark.whole(f"over {face}"))
