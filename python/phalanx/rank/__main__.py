"""`python -m phalanx.rank`: a rank."""

import sys

if __name__ == "__main__":
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        # -m put the working directory first: a file there would shadow modules that the caller sees
        del sys.path[0]
    # The entry has a module of its own, so that __main__ is free for the training code.
    from phalanx.rank.entry import main

    main()
