"""Base of all records: frozen, closed to unknown fields, no NaN or infinity (JSON cannot hold them)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen pydantic model; the string under a field is its documentation and goes into the schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
