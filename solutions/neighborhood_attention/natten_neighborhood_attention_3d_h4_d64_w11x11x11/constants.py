WINDOW = (11, 11, 11)  # along T, Y, X
