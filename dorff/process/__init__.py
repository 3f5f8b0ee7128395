"""This process: its signals, its BLAS threads, and the secrets of its environment."""
