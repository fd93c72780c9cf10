"""The torch.distributed backend `phalanx`."""

NAME = "phalanx"
"""What users call the backend in `init_process_group`."""
