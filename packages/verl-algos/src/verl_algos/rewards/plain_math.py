r"""Mathematics in plain text as LaTeX: ``exp(16)``, ``pi/2``, ``sqrt(x + 1)``, ``2*x**3``, ``3x + 4y``."""

import re

_NAMES = {
    "pi": "\\pi",
    "infinity": "\\infty",
    "inf": "\\infty",
    "oo": "\\infty",
    "alpha": "\\alpha",
    "beta": "\\beta",
    "theta": "\\theta",
    "sin": "\\sin",
    "cos": "\\cos",
    "tan": "\\tan",
    "log": "\\log",
    "ln": "\\ln",
}
_WRAPPED = {"sqrt": "\\sqrt{", "exp": "e^{"}
_WORD = re.compile(
    r"(?<![A-Za-z\\])(" + "|".join(sorted({*_NAMES, *_WRAPPED}, key=len, reverse=True)) + r")(?![A-Za-z])"
)
_TEXT = re.compile(r"\\(?:text|mathrm|mbox)\{[^{}]*\}")
_TRAILING_ZEROS = re.compile(r"(?<![0-9.,])([0-9]+)\.0+(?![0-9])")
_UNIT_FACTOR = re.compile(r"(?<![0-9A-Za-z.,^_{])1 ?(?=i(?![A-Za-z]))")
_MIXED = re.compile(r"(?<![0-9.,/^])([0-9]+) +([0-9]+)/([0-9]+)(?![0-9./])")


def is_expression(text: str) -> bool:
    """Whether one of the names that are rewritten stands in `text`."""
    return _WORD.search(text) is not None


def to_latex(text: str) -> str:
    r"""Rewrite what is plain text; LaTeX stays as it is. ``2 1/2`` inside an expression becomes ``(2+\frac{1}{2})``."""
    pieces: list[str] = []
    position = 0
    for hidden in _TEXT.finditer(text):  # the words of \text{...} are not mathematics
        pieces += [_rewritten(text[position : hidden.start()]), hidden[0]]
        position = hidden.end()
    return "".join([*pieces, _rewritten(text[position:])])


def _rewritten(text: str) -> str:
    text = text.replace("\u2212", "-").replace("**", "^").replace("*", " \\cdot ")
    text = _MIXED.sub(_mixed, _TRAILING_ZEROS.sub(r"\1", text))
    text = _UNIT_FACTOR.sub("", text)  # 1i is read as another symbol than i
    text = _braced_exponents(text)
    out: list[str] = []
    position = 0
    closings: list[int] = []  # positions of the parentheses that close a wrapped argument
    for match in _WORD.finditer(text):
        out.append(_copied(text, position, match.start(), closings))
        position = match.end()
        word = match[1]
        opening = position
        while text[opening : opening + 1] == " ":
            opening += 1
        closing = _closing(text, opening) if word in _WRAPPED else None
        if word in _NAMES:
            out.append(_NAMES[word] + " ")
        elif closing is None:
            out.append(word)
        else:
            out.append(_WRAPPED[word])
            closings.append(closing)
            position = opening + 1
    out.append(_copied(text, position, len(text), closings))
    return "".join(out)


def _mixed(match: re.Match[str]) -> str:
    if not 0 < int(match[2]) < int(match[3]):
        return match[0]
    return f"({match[1]}+\\frac{{{match[2]}}}{{{match[3]}}})"


def _braced_exponents(text: str) -> str:
    """``x^(n+1)`` and ``2^-3`` with braces, which LaTeX needs."""
    out: list[str] = []
    position = 0
    for match in re.finditer(r"\^\s*(?:(\()|(-?[0-9]{2,}|-[0-9A-Za-z]))", text):
        if match.start() < position:
            continue
        if match[2] is not None:
            out += [text[position : match.start()], f"^{{{match[2]}}}"]
            position = match.end()
        elif (closing := _closing(text, match.start(1))) is not None:
            out += [text[position : match.start()], "^{", text[match.start(1) + 1 : closing], "}"]
            position = closing + 1
    return "".join([*out, text[position:]])


def _copied(text: str, begin: int, end: int, closings: list[int]) -> str:
    return "".join("}" if index in closings else text[index] for index in range(begin, end))


def _closing(text: str, opening: int) -> int | None:
    """Where the parenthesis at `opening` closes; None if there is none, or it does not close."""
    if text[opening : opening + 1] != "(":
        return None
    depth = 0
    for position in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return None
