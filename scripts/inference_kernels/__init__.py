"""The library behind the commands of scripts/: packages that import in one direction, which
tests/unit/test_imports.py states.
"""
