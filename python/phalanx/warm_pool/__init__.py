"""The warm pool: a process that has imported torch, from which ranks are forked."""
