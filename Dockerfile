# syntax=docker/dockerfile:1
# Built from a checkout:
#
#   docker build -t bulkhead .
#   docker build -t bulkhead --build-arg EXTRAS=torch --build-arg TORCH_INDEX=URL .
#
# It serves with the native kernels, without torch; `bulkhead build` needs it, and so do a few
# options. On Linux the plain package index gives torch's CUDA build, which is gigabytes. URL is a
# package index with its CPU build; the packages that it lacks still come from the plain one.
ARG PYTHON=3.11

# This one has a compiler, for the native kernels; what is served from has none.
FROM python:${PYTHON} AS build
ARG EXTRAS=""
ARG TORCH_INDEX=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/bulkhead
WORKDIR /src
# What it depends on, in a layer of its own: a changed source doesn't fetch torch again.
COPY pyproject.toml ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python -c "import sys, tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
        extras = [one for name in sys.argv[1:] for one in project['optional-dependencies'][name]]; \
        print(*project['dependencies'], *extras, sep='\n')" ${EXTRAS:-} > requirements.txt \
    && /opt/bulkhead/bin/pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
        --only-binary :all: -r requirements.txt
COPY README.md LICENSE CMakeLists.txt ./
COPY gateway gateway
COPY runtime runtime
COPY engines engines
COPY config config
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/bulkhead/bin/pip install --no-deps . \
    && /opt/bulkhead/bin/python -I -c "import engines._native"

FROM python:${PYTHON}-slim
# Of a fixed number, so that whoever mounts a volume knows whose it must be.
RUN groupadd --gid 10001 bulkhead \
    && useradd --uid 10001 --gid bulkhead --no-log-init --home-dir /var/lib/bulkhead \
        --no-create-home --shell /usr/sbin/nologin bulkhead \
    && install -d -o bulkhead -g bulkhead -m 0700 /var/lib/bulkhead
COPY --from=build /opt/bulkhead /opt/bulkhead
# With TLS, HEALTH_URL begins with https. The certificate isn't checked: it names another host.
ENV PATH=/opt/bulkhead/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    BULKHEAD_STATE=/var/lib/bulkhead \
    BULKHEAD_HOST=0.0.0.0 \
    HEALTH_URL=http://127.0.0.1:8787/healthz
USER 10001:10001
WORKDIR /var/lib/bulkhead
# Database, keys, and the weights, which are fetched at the first start.
VOLUME /var/lib/bulkhead
EXPOSE 8787
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s \
    CMD ["python", "-c", "import os, ssl, urllib.request as http; http.urlopen(os.environ['HEALTH_URL'], timeout=4, context=ssl._create_unverified_context())"]
ENTRYPOINT ["bulkhead"]
CMD ["serve"]
