LARGEST_M = 6144  # of the calls in which DeepGEMM was the faster
