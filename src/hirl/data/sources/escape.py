"""File and folder names, which may contain any bytes, as printable text on one line."""


def one_line(text: str) -> str:
    r"""`text` with line breaks, control characters, undecodable bytes and backslashes written as `\n`, `\xff`, ...

    Different names stay different, and the result can be printed in UTF-8 anywhere.
    """
    return "".join(c if c.isprintable() and c != "\\" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # how Python holds a byte of a file name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
