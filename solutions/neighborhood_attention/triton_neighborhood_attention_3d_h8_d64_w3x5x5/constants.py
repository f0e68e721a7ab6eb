H = 8
WINDOW = (3, 5, 5)  # along T, Y, X
# Keys per block, warps and stages, from a sweep on an H200.
BLOCK_N, WARPS, STAGES = 128, 4, 2
