WINDOW = (3, 7, 7)  # along T, Y, X
