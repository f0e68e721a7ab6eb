"""The library behind the commands of scripts/: packages that import in one direction, which
tests/repository/test_imports.py states.
"""
