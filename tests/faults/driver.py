"""`dorff` with leaves of $DORFF_TEST_LEAF rows, so that few rows have many of them; what else it does is its own."""

import os

if __name__ == "__main__":
    from dorff.cli import main
    from dorff.passes import blocks

    blocks.SMALLEST_LEAF = blocks.LARGE_FIRST_LEAF = int(os.environ["DORFF_TEST_LEAF"])
    main()
