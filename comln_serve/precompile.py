"""`python -m comln_serve.precompile` compiles the solver when a container image is built."""

from comln_serve.engine.compilation import compile_flow

if __name__ == "__main__":
    compile_flow()
