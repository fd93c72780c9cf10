.PHONY: demo test
