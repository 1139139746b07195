r"""The final answer of a LaTeX solution: what its last \boxed or \fbox holds."""

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BARE = re.compile(r"[^$\n]*")


def last_boxed(solution: str) -> str:
    r"""Return what the last \boxed{...} or \fbox{...} of a solution holds, or follows ``\boxed`` without braces.

    Braces are balanced, escaped ones (``\{``) do not count; without braces the answer ends with the line or a dollar
    sign. Spaces around it are left out.

    Raises ValueError if there is no box, if it is empty, or if its braces never close.
    """
    boxes = list(_BOX.finditer(solution))
    if not boxes:
        raise ValueError(f"the solution has no \\boxed answer; it ends with {solution[-60:]!r}")
    begin = boxes[-1].end()
    found = _braced(solution, begin) if solution[begin : begin + 1] == "{" else _BARE.match(solution, begin)
    answer = (found if isinstance(found, str) else found[0] if found else "").strip()
    if not answer:
        raise ValueError(
            f"the last box of the solution is empty or never closed: {solution[boxes[-1].start() :][:60]!r}"
        )
    return answer


def _braced(solution: str, begin: int) -> str | None:
    """Return what the brace at `begin` encloses; None if it never closes."""
    depth, position = 0, begin
    while position < len(solution):
        character = solution[position]
        if character == "\\":
            position += 1  # the next character is escaped
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return solution[begin + 1 : position]
        position += 1
    return None
