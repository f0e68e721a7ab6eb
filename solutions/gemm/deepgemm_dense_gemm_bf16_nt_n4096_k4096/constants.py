LARGEST_M = 8192  # up to which DeepGEMM was faster than torch
