"""Captures on rented GPUs: plan, upload, run, fetch; nothing here knows how an operator is captured."""
