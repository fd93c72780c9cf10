"""What Phalanx has for the libraries above torch. None of them is imported unless its user did."""
