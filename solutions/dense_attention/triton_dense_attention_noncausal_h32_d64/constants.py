D = 64
# (queries per tile, keys per block, warps, stages) for long query sequences, from a sweep on an H200.
LONG = (128, 64, 8, 3)
