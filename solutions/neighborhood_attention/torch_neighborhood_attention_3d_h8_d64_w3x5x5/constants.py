WINDOW = (3, 5, 5)  # along T, Y, X
