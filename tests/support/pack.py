"""Packs golden files into the archives of tests/golden: `python -m tests.support.pack FROM TO`.

FROM holds SCEN.events.jsonl, SCEN.sql, SCEN.final.json, SCEN.VARIANT.jsonl (each perhaps gzipped),
claimcheck/ and, for the new architecture, the same once more under new/. One archive is made for each
scenario, all variants in it: they say the same thing in many ways, so together they pack six times
smaller than apart. The result depends on nothing but the content.
"""

import base64
import gzip
import io
import json
import lzma
import sys
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import Any

FOLDERS = ("", "new", "aliasbug")
PLAIN = ("sql", "final.json", "events.jsonl")


def framed(lines: bytes) -> bytes:
    """JSON lines with base64 members, as the framed messages that corpus.parse_messages reads."""
    out = bytearray()
    for line in lines.splitlines():
        message = json.loads(line)
        key, value = (_decoded(message.pop(name)) for name in ("key", "value"))
        partition, note = message.pop("partition"), message.pop("note")
        head = [str(partition), _size(key), _size(value), json.dumps(note) if message else note]
        if message:  # a mutated message: what is told of it besides
            head[-1] = json.dumps({"note": note, **message}, separators=(",", ":"))
        assert "\n" not in head[-1]
        out += " ".join(head).encode() + b"\n" + (key or b"") + (value or b"") + b"\n"
    return bytes(out)


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _size(data: bytes | None) -> str:
    return "-" if data is None else str(len(data))


def _read(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def scenarios(source: Path) -> dict[str, dict[str, bytes]]:
    """The members of each scenario's archive."""
    members: dict[str, dict[str, bytes]] = defaultdict(dict)
    for folder in FOLDERS:
        for path in sorted((source / folder).glob("*.*")):
            name = path.name.removesuffix(".gz")
            scenario, _, rest = name.partition(".")
            if path.is_dir() or scenario == "README":
                continue
            data = _read(path)
            if not (rest in PLAIN or rest.endswith(".events.jsonl") or scenario == "craft_seed"):
                name, data = name.removesuffix(".jsonl") + ".msgs", framed(data)
            members[scenario][f"{folder}/{name}".lstrip("/")] = data
        for path in sorted((source / folder / "claimcheck").glob("*/*")):
            scenario = path.parent.name.partition(".")[0]
            name = f"{folder}/claimcheck/{path.parent.name}/{path.name}".lstrip("/")
            members[scenario][name] = path.read_bytes()
    return members


def archive(members: dict[str, bytes]) -> bytes:
    """One .tar.xz, the same bytes for the same members."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            out.addfile(entry, io.BytesIO(data))
    size = len(tar.getvalue())
    dictionary = next(1 << n for n in range(20, 28) if 1 << n >= min(size, 1 << 27))
    filters: list[dict[str, Any]] = [
        {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": dictionary}
    ]
    return lzma.compress(tar.getvalue(), filters=filters)


def main(source: Path, target: Path) -> None:
    index = []
    for scenario, members in sorted(scenarios(source).items()):
        (target / f"{scenario}.tar.xz").write_bytes(archive(members))
        for name, data in members.items():
            if name.endswith(".msgs"):
                index.append(f"{name.removesuffix('.msgs')}\t{len(_messages(data))}\n")
        print(scenario, (target / f"{scenario}.tar.xz").stat().st_size)
    (target / "INDEX").write_text("".join(sorted(index)))


def _messages(data: bytes) -> list[Any]:
    from tests.support.corpus import parse_messages

    return parse_messages(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
