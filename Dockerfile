# SPDX-License-Identifier: Apache-2.0
#
# docker build -t headwise .            (or ./dev image, which also tries it out)
# docker run -p 8500:8500 -v /path/to/checkpoints:/models:ro headwise --demo

FROM debian:trixie-slim AS build
COPY deploy/packages-build.txt /tmp/
# The caches are for the next build on this machine; nothing of them ends in a layer.
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    rm -f /etc/apt/apt.conf.d/docker-clean && mkdir -p /var/cache/apt/archives/partial && \
    apt-get update -q && \
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
      -o APT::Keep-Downloaded-Packages=true $(sed 's/#.*//' /tmp/packages-build.txt)
WORKDIR /src
COPY . .
# ./dev image names a folder that it mounts: what `./dev build` has compiled isn't compiled again.
ARG CCACHE_DIR=/ccache
RUN --mount=type=cache,target=/ccache,sharing=locked \
    export CCACHE_DIR CCACHE_BASEDIR=/src CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros,locale && \
    cmake --preset release -DHEADWISE_TESTS=OFF -DCMAKE_INSTALL_PREFIX=/usr/local && \
    cmake --build build/release && \
    DESTDIR=/out cmake --install build/release --strip

FROM debian:trixie-slim
COPY deploy/packages-runtime.txt /tmp/
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    rm -f /etc/apt/apt.conf.d/docker-clean && mkdir -p /var/cache/apt/archives/partial && \
    apt-get update -q && \
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
      -o APT::Keep-Downloaded-Packages=true $(sed 's/#.*//' /tmp/packages-runtime.txt) && \
    rm /tmp/packages-runtime.txt && mkdir /models
COPY --from=build /out/usr/local/bin/ /usr/local/bin/
# What is in here, with versions and licences.
COPY --from=build /out/usr/local/share/doc/headwise/ /usr/local/share/doc/headwise/

# A number, so that Kubernetes can see that it isn't root. The server writes nothing: run it with a read-only root.
USER 65532:65532
EXPOSE 8500 8501
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["headwise", "--server", "127.0.0.1:8500", "--timeout", "4s", "health"]
# Arguments of `docker run` come after these, and the last of a flag counts.
ENTRYPOINT ["headwise-server", "--listen", "0.0.0.0:8500", "--metrics", "0.0.0.0:8501", "--repository", "/models"]
