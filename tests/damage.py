"""Damaged copies of good files: one value of the right place is of the wrong kind, or bytes are lost or turned."""

import gzip
import json
import pickle
import re
from copy import deepcopy

FOUR_HUNDRED_DIGITS = "9" * 400
RAW = ("1e400", "-1e400", FOUR_HUNDRED_DIGITS, f"-{FOUR_HUNDRED_DIGITS}", "9" * 5000, "NaN", "Infinity", "-Infinity")
"""Numbers that Python's JSON reads and nobody can have measured."""
ODD_VALUES = (
    *(None, True, False, "", "x", "nan", "inf", "-1", "1e400", "\x1b[31mred\x1b[0m", "\ud800", "a\nb\tc", "ü" * 300),
    *(0, -1, 1, 2, 3, -7, 2**31, 2**63, -(2**63), 10**30, 0.0, -0.0, 0.5, 1e-320, 1e308, -1e308),
    *([], {}, [[]], [None], [{}], {"": None}, ["x"], [0], [-1], [1e308] * 3),
)
ODD_NUMBERS = (0, 1, 2, 3, 1000, 10**6, 10**12, 10**18, -1, 1e-3, 1e-9, 1e-18)
"""Put in the place of a number, or multiplied with it: of the right kind, and of no size that was thought of."""
ODD_WORDS = (
    "",
    "nan",
    "inf",
    "-inf",
    "-5",
    "0",
    "1e400",
    FOUR_HUNDRED_DIGITS,
    "9" * 5000,
    "x",
    "1.2.3",
    "--",
    "\x1b[2J",
)
NUMBER = re.compile(r"\d+(?:\.\d+)?")
DEPTH = 3000
PLACE = "@@raw@@"


def damaged_tree(tree, draw):
    """The document with one to three values replaced, removed, renamed, repeated or wrapped; and whether it is text."""
    changed, raw = deepcopy(tree), None
    for _ in range(draw.choice((1, 1, 2, 3))):
        holder, key = _place(changed, draw)
        if holder is None:
            return draw.choice(ODD_VALUES), None
        kind = draw.randrange(10)
        if kind == 0 and isinstance(holder, dict):
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[draw.choice(("", "x", "\x1b]0;t\x07", "__class__"))] = holder.pop(key)
        elif kind == 2:
            holder[key] = [deepcopy(holder[key])]
        elif kind == 3 and isinstance(holder, list):
            holder.extend(deepcopy(holder[key]) for _ in range(draw.choice((1, 50))))
        elif kind == 4:
            holder[key], raw = PLACE, draw.choice(RAW)
        elif kind < 8 and type(holder[key]) in (int, float):
            holder[key] = type(holder[key])(draw.choice(ODD_NUMBERS) * draw.choice((1, holder[key])))
        else:
            holder[key] = deepcopy(draw.choice(ODD_VALUES))
    return changed, raw


def _place(tree, draw):
    """A random value inside, by what holds it and where."""
    holder, key = None, None
    while isinstance(tree, dict | list) and tree:
        keys = list(tree) if isinstance(tree, dict) else range(len(tree))
        holder, key = tree, draw.choice(keys)
        tree = tree[key]
        if draw.random() < 0.15:
            break
    return holder, key


def damaged_json(content, draw):
    """One document, or lines of them."""
    text = content.decode()
    kind = draw.randrange(12)
    if kind == 0:
        return draw.choice((b"", b"[]", b"{}", b"null", b"0", b'"x"', b"[" * DEPTH, b'{"a":' * DEPTH, b"\xff\xfe\x00"))
    if kind == 1:
        return damaged_bytes(content, draw)
    try:
        trees, separator = [json.loads(text)], "\n"
    except ValueError:
        trees, separator = [json.loads(line) for line in text.splitlines() if line.strip()], "\n"
    chosen = draw.randrange(len(trees))
    trees[chosen], raw = damaged_tree(trees[chosen], draw)
    said = separator.join(json.dumps(tree) for tree in trees)
    if raw is not None:
        said = said.replace(f'"{PLACE}"', raw)
    if kind == 2 and '"' in said:  # a key twice
        said = said.replace("{", f"{{{json.dumps(draw.choice(('x', 'step', 'model')))}: 1, ", 1)
    return said.encode("utf-8", errors="surrogatepass")


def damaged_text(content, draw):
    """Lines of which one number, one line or the order is another."""
    text = content.decode()
    kind = draw.randrange(8)
    if kind == 0:
        return damaged_bytes(content, draw)
    lines = text.splitlines()
    if kind == 1:
        draw.shuffle(lines)
    elif kind == 2:
        lines = lines[: draw.randrange(len(lines) + 1)]
    elif kind == 3:
        lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines) * draw.choice((1, 3)))
    else:
        for _ in range(draw.choice((1, 1, 3))):
            found = list(NUMBER.finditer(text))
            if not found:
                break
            number = draw.choice(found)
            text = text[: number.start()] + draw.choice(ODD_WORDS) + text[number.end() :]
        return text.encode()
    return "\n".join(lines).encode()


def damaged_bytes(content, draw):
    """Some bytes turned, cut out, put in, or the end cut off."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 2, 8))):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(5)
        if kind == 0 and data:
            del data[at:]
        elif kind == 1:
            data[at:at] = draw.choice((b"\x00", b"\xff", b"\x1b[31m", b"9" * 30, b"{", b"]", bytes(8)))
        elif kind == 2 and at < len(data):
            del data[at : at + draw.choice((1, 4, 64))]
        elif at < len(data):
            data[at] = draw.randrange(256)
    return bytes(data)


def damaged_pickle(content, draw):
    """A pickle of a damaged tree, or damaged bytes of the pickle."""
    if draw.random() < 0.3:
        return damaged_bytes(content, draw)
    tree, raw = damaged_tree(pickle.loads(content), draw)
    if raw is not None:
        tree = json.loads(json.dumps(tree).replace(f'"{PLACE}"', raw if len(raw) < 4000 else "NaN"))
    return pickle.dumps(tree, protocol=draw.choice((2, 3, 4, 5)))


def damaged_gzip(content, draw):
    """A packed file whose content is damaged, or that is damaged itself."""
    if draw.random() < 0.4:
        return damaged_bytes(content, draw)
    return gzip.compress(damaged_json(gzip.decompress(content), draw), compresslevel=1)


def damaged_safetensors(content, draw):
    """A file of weights with a damaged header."""
    if draw.random() < 0.3:
        return damaged_bytes(content, draw)
    size = int.from_bytes(content[:8], "little")
    header = damaged_json(content[8 : 8 + size], draw)
    claimed = draw.choice((len(header), len(header), len(header), 2**62, 0, 100_000_000))
    return claimed.to_bytes(8, "little") + header + content[8 + size :]
