"""One package for each engine model, and the registry of them; everything that knows a model's name lives here."""
