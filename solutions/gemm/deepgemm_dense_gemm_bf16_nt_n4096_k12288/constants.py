LARGEST_M = 6144  # up to which DeepGEMM was faster than torch
