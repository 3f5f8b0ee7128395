"""`python -m dorff` is `dorff`."""

from dorff.cli import main

if __name__ == "__main__":  # a worker process, which imports this module, must not start the command again
    main()
