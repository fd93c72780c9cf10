"""How a run is shown while it goes: in a notebook's cell, on a terminal, in a file, as a figure."""
