H = 16
WINDOW = (3, 7, 7)  # along T, Y, X
# Keys per block, warps and stages, from a sweep on an H200.
BLOCK_N, WARPS, STAGES = 64, 4, 3
