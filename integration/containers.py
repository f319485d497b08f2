"""Servers in containers, for ``pytest integration --servers=docker``: started before the tests, removed after them."""

from __future__ import annotations

import contextlib
import os

import pytest
from milepost.testing import servers, servers_redis

POSTGRES_IMAGE = "postgres:17"
REDIS_IMAGE = "valkey/valkey:8"


def start() -> contextlib.ExitStack:
    """Start both servers and have the tests, also those of other workers, use them. Closing the answer stops them.

    Raises ``pytest.UsageError`` where testcontainers is not installed, or no Docker daemon answers.
    """
    try:
        from testcontainers.community.postgres import PostgresContainer
        from testcontainers.community.redis import RedisContainer
        from testcontainers.core.exceptions import ContainerStartException
    except ImportError as exc:
        raise pytest.UsageError("--servers=docker needs testcontainers: uv sync --group docker") from exc
    from docker.errors import DockerException  # type: ignore[import-untyped]

    with contextlib.ExitStack() as stack:
        try:
            postgres = stack.enter_context(PostgresContainer(POSTGRES_IMAGE, driver=None))
            redis = stack.enter_context(RedisContainer(REDIS_IMAGE))
        except (ContainerStartException, DockerException) as exc:
            raise pytest.UsageError(f"--servers=docker, but no Docker daemon runs the containers: {exc}") from exc
        os.environ[servers.POSTGRES_URL] = postgres.get_connection_url()
        host, port = redis.get_container_host_ip(), redis.get_exposed_port(redis.port)
        os.environ[servers_redis.REDIS_URL] = f"redis://{host}:{port}"
        return stack.pop_all()
