"""The offline page that browses everything: its data, its scripts and its style."""
