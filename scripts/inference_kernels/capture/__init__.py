"""Record operator calls of a running engine, validate and import them; nothing here knows a particular model."""
