"""Other people's engines in this process, as something to measure beside our own."""
