"""Cheats by the clock (T1 to T16 of docs/threat-model.md)."""

from __future__ import annotations

from cheat_case import Case

CASES: list[Case] = []
