LARGEST_M = 8192  # of the calls in which DeepGEMM was the faster
