"""Everything that runs in a candidate's process; may import judge's channel, window, rearrange, verdicts, and core."""
