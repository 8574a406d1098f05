"""The settings of an encoder: TiCDC's own, by TiCDC's own names (with underscores)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tidegate.model import ConfigError

MIB = 1024 * 1024


_CHOICES: dict[str, tuple[str | None, ...]] = {
    "generation": ("classic", "new"),
    "encoding_format": ("json", "avro"),
    "profile": ("document", "operations"),
    "compression": (None, "snappy", "lz4"),
    "large_message_handle": (None, "handle-key-only", "claim-check"),
}


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """Defaults are TiCDC's. Options a protocol does not know are refused by `encode_batch`."""

    max_message_bytes: int = 10 * MIB
    max_batch_size: int = 16
    mix_tables: bool = False
    """Open protocol and Craft: a message may hold rows of several tables. TiCDC joins rows that its
    dispatcher gives the same key, which for the table dispatcher are those of one table."""
    generation: Literal["classic", "new"] = "classic"
    """Whose bytes to write where TiCDC's two architectures differ (see docs/protocols/)."""
    output_old_value: bool = True
    """Open protocol: write the row before an update."""
    only_output_updated_columns: bool = False
    delete_only_output_handle_key_columns: bool = False
    enable_tidb_extension: bool = False
    """Canal-JSON: the `_tidb` member and watermarks."""
    content_compatible: bool = False
    """Canal-JSON: as the official Canal writes it."""
    encoding_format: Literal["json", "avro"] = "json"
    """Simple."""
    profile: Literal["document", "operations"] = "document"
    """cdc: the document's layout, or the one whose rows say what was done to them."""
    compression: Literal["snappy", "lz4"] | None = None
    large_message_handle: Literal["handle-key-only", "claim-check"] | None = None
    claim_check_raw_value: bool = False
    claim_check: Callable[[bytes], str] | None = None
    """Stores a claim-check object and gives back its location."""
    time_zone: str = "UTC"
    """Simple: the location of TIMESTAMP values that carry none."""
    build_ts: int | None = None
    """The wall clock, in ms, of Canal-JSON's `ts` and Simple's `buildTs`; None: now."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            chosen = getattr(self, name)
            if chosen not in choices:
                known = ", ".join(choice for choice in choices if choice is not None)
                raise ConfigError(name, f"{chosen!r} is not one of {known}")
        for name in ("max_message_bytes", "max_batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(name, "it must be at least 1")
