#!/bin/sh
# The solver was compiled when the image was built. Numba reads what it compiled from a folder that it can
# write to, which the image itself need not be.
set -eu
mkdir -p "$NUMBA_CACHE_DIR"
cp -R "$COMPILED_SOLVER/." "$NUMBA_CACHE_DIR"
exec comln-serve "$@"
