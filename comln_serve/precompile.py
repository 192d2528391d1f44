"""`python -m comln_serve.precompile`: compile the solver in advance, when an image is built."""

from comln_serve.engine import engine

if __name__ == "__main__":
    engine._compile_flow()  # pyright: ignore[reportPrivateUsage]
