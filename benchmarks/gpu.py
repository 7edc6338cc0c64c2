"""How close to the limits of the memory does a GPU sample, gather, aggregate and train? See gpu_run.py.

usage: python benchmarks/gpu.py [--stages limits,sampling,...] [--nodes 2449029] [--seconds 380]
"""

from gpu_run import main

if __name__ == "__main__":
    main()
