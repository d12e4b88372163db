# pytriton-lite, built from this checkout as a wheel. Models are mounted at /models:
#
#   docker build -t pytriton-lite .                               or with --build-arg PYTHON=3.12 --build-arg EXTRAS=gs,otel
#   docker run --rm -p 8000-8002:8000-8002 -v "$PWD/model_repository:/models:ro" pytriton-lite
#
# Docker's 64 MB of /dev/shm are enough: tensors go through memory files.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim AS build
WORKDIR /src
# For the compiled modules of the wheel; the image itself has no compiler.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
RUN pip install --no-cache-dir build
COPY pyproject.toml README.md LICENSE ./
COPY pytriton_lite pytriton_lite
COPY model_api model_api
COPY tools tools
RUN HATCH_BUILD_HOOKS_ENABLE=true python -m build --wheel --outdir /dist

FROM python:${PYTHON}-slim
RUN useradd --create-home --uid 1000 triton
COPY --from=build /dist/*.whl /tmp/
# Extras of pyproject.toml: this one brings what the models of model_repository/ import; s3, gs, azure and https are for remote
# repositories.
ARG EXTRAS=examples
RUN pip install --no-cache-dir "$(ls /tmp/*.whl)[${EXTRAS}]" && rm /tmp/*.whl
# By number: a cluster that wants containers to run as no root looks at that alone.
USER 1000
WORKDIR /home/triton
EXPOSE 8000 8001 8002
STOPSIGNAL SIGTERM
# Nothing answers while models load; give large ones time before failures count.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:%s/v2/health/ready' % os.environ.get('PYTRITON_LITE_HTTP_PORT', '8000'), timeout=4)"]
ENTRYPOINT ["pytriton-lite", "serve"]
CMD ["/models"]
