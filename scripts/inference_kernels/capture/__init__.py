"""What records a running engine's operator calls, validates and imports them; nothing here knows one model."""
