"""Documents, tables and figures made from the repository's data; nothing here measures."""
