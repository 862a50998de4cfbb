"""What the rig raises. A test never skips because of these: a rig that does not work is an error."""

from __future__ import annotations


class RigError(Exception):
    """Something of the rig did not do what it should."""


class MissingToolError(RigError):
    """This machine lacks something that the bootstrap installs."""


class CommandError(RigError):
    """A command ended with a code other than 0, or not in time."""

    def __init__(self, argv: list[str], code: int | None, stdout: str, stderr: str) -> None:
        self.argv, self.code, self.stdout, self.stderr = argv, code, stdout, stderr
        how = "did not end in time" if code is None else f"ended with {code}"
        said = (stderr.strip() or stdout.strip())[-4000:]
        super().__init__(f"`{' '.join(argv)}` {how}: {said}")
