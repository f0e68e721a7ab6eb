D = 128
# (queries per tile, keys per block, warps, stages) for long query sequences, from a sweep on an H200.
LONG = (64, 64, 4, 3)
