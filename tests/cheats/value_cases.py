"""Cheats by values (V1 to V23 of docs/threat-model.md)."""

from __future__ import annotations

from cheat_case import Case

CASES: list[Case] = []
