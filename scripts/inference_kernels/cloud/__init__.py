"""Capture on rented GPUs: plan, upload, run, retrieve; nothing here knows how an operator is captured."""
