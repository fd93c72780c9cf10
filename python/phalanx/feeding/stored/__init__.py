"""Data sets that are kept in a place of the user's."""
