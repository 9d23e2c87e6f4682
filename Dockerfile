# The exporter's command line: GPU agent, replay, tools. Training images need no more than `pip install verl-prometheus`.
FROM python:3.12-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY exporter exporter
RUN pip wheel --no-cache-dir --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-compile --no-index --find-links=/wheels /wheels/verl_prometheus-*.whl \
 && useradd --uid 65532 --no-create-home --shell /usr/sbin/nologin verl
USER 65532
# Which port to ask: that of the agent, unless the service sets another.
ENV VERL_PROMETHEUS_HEALTH_PORT=9401 PYTHONUNBUFFERED=1
EXPOSE 9401
HEALTHCHECK --interval=15s --timeout=5s --start-period=10s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ['VERL_PROMETHEUS_HEALTH_PORT'] + '/-/healthy', timeout=4)"]
ENTRYPOINT ["verl-prometheus"]
CMD ["node"]
