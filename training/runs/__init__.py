"""Meta-training: the loop, what it draws, what it leaves behind."""
