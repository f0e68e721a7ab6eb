"""One package per engine model, and the registry that names them; everything that depends on a model lives here."""
