"""Cheats that need several ranks (M1 to M24 of docs/threat-model.md)."""

from __future__ import annotations

from cheat_case import Case

CASES: list[Case] = []
