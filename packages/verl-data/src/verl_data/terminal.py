"""Text from anywhere, made fit for a terminal."""

import unicodedata

#: Categories of characters that a terminal obeys, cannot encode or does not show: controls, formats (zero width, or
#: turning text about), surrogates, separators of lines and paragraphs.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def visible(text: str, *, keep: str = "\n\t") -> str:
    """Write what a terminal would obey, could not encode or would not show as escapes, but for the characters `keep`.

    With none of these the text is one line, and cannot pass for others.
    """
    if text.isprintable():
        return text
    return "".join(
        ascii(character)[1:-1] if character not in keep and unicodedata.category(character) in _UNSEEN else character
        for character in text
    )
