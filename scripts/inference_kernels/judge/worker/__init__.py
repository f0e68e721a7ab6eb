"""Everything that runs beside a candidate, in its process; it may import judge's channel, window, rearrangement and
verdicts, and core.
"""
