"""Cases by people who had not read the code that they try: planted bugs, bad inputs, folders, training loops."""
