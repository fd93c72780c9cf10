"""The `__main__` of processes that multiprocessing spawns from a function's rank.

multiprocessing imports a spawned process's main module under the name `__mp_main__` before it unpickles anything. That
main module is this one. It then holds the functions and classes of the caller's `__main__`, as the rank's own
`__main__` does.
"""

import os

if __name__ == "__mp_main__":
    from phalanx.rank import contract
    from phalanx.rank.payload import Payload
    from phalanx.rank.program import call_in

    call_in(globals(), Payload(os.environ[contract.ENV_PAYLOAD]))
