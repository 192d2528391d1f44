"""`python -m comln_serve.precompile`: compile the solver in advance, when an image is built."""

from comln_serve.engine.compilation import compile_flow

if __name__ == "__main__":
    compile_flow()
