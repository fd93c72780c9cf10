"""Scoring: a trained model makes columns of a DataFrame's rows, in one process for each executor.

SCORE-10 (few-imports): a task imports numpy and pyarrow, and torch only where the user's own function does.
SCORE-11 (own-copy): the caller's model stays as it is: what scores is a copy, on the processors, in evaluation mode.
"""
