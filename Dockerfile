# The server, without the trainer and without torch:
#
#   docker build --target cpu  -t comln-serve:cpu  .    # the default target
#   docker build --target cuda -t comln-serve:cuda .    # CUDA's libraries included, the driver from the host
#
# How to run them: docs/deployment.md

ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim-trixie AS base
# The image of Python comes without bytecode, and a read-only container cannot keep any: each start would compile
# the standard library anew, and so would each health check.
RUN python -m compileall -q -x '/(site-packages|tests?|idlelib|lib2to3)/' \
    "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
# The solver's machine code is compiled for this kind of processor, not for the one that builds the image:
# x86-64-v3 has AVX2, as servers have had since 2015. For others, ARM among them, build with "generic".
ARG NUMBA_CPU_NAME=x86-64-v3
ENV NUMBA_CPU_NAME=${NUMBA_CPU_NAME} \
    NUMBA_CPU_FEATURES="" \
    NUMBA_CACHE_DIR=/tmp/comln-numba \
    COMPILED_SOLVER=/opt/numba \
    PATH=/opt/comln/bin:${PATH} \
    PYTHONUNBUFFERED=1

# Everything but ONNX Runtime, which compiling the solver does not need.
FROM base AS build
WORKDIR /opt/src
COPY pyproject.toml constraints.txt ./
COPY deploy/docker ./deploy/docker
RUN python -m venv /opt/comln \
    && python deploy/docker/requirements.py common > requirements.txt \
    && pip install --no-cache-dir --only-binary :all: -c constraints.txt -r requirements.txt
COPY README.md LICENSE ./
COPY comln_serve ./comln_serve
RUN pip install --no-cache-dir --no-deps . \
    && rm /opt/comln/bin/comln-train \
    && NUMBA_CACHE_DIR=/opt/numba python -P -m comln_serve.engine.compilation

FROM build AS build-cpu
RUN python deploy/docker/requirements.py cpu > requirements.txt \
    && pip install --no-cache-dir --only-binary :all: -c constraints.txt -r requirements.txt

FROM build AS build-cuda
RUN python deploy/docker/requirements.py cuda > requirements.txt \
    && pip install --no-cache-dir --only-binary :all: \
        -c constraints.txt -c deploy/docker/constraints-cuda.txt -r requirements.txt

FROM base AS runtime
RUN groupadd --gid 10001 comln \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --shell /usr/sbin/nologin comln \
    && install --directory --owner=10001 --group=10001 --mode=0700 /data
COPY models /models
COPY --chmod=0555 deploy/docker/entrypoint.sh /usr/local/bin/entrypoint
ENV COMLN_HOST=0.0.0.0 \
    COMLN_PORT=8000 \
    COMLN_MODELS_DIR=/models \
    COMLN_DATABASE_URL=sqlite:////data/comln-serve.db
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-c", \
    "from http.client import HTTPConnection as C; c = C('127.0.0.1', 8000, timeout=4); c.request('GET', '/health/ready'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["entrypoint"]

FROM runtime AS cuda
COPY --from=build-cuda /opt/comln /opt/comln
COPY --from=build-cuda /opt/numba /opt/numba
# What NVIDIA's container toolkit gives the container; cuda refuses to start where there is no GPU.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    COMLN_PROVIDER=cuda

FROM runtime AS cpu
COPY --from=build-cpu /opt/comln /opt/comln
COPY --from=build-cpu /opt/numba /opt/numba
ENV COMLN_PROVIDER=cpu
