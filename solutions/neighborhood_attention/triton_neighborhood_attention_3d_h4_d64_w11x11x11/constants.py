H = 4
WINDOW = (11, 11, 11)  # along T, Y, X
# Keys per block, warps and stages, from a sweep on an H200.
BLOCK_N, WARPS, STAGES = 64, 4, 3
