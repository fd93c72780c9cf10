"""The rank's side: what runs in the process that trains."""
