"""Milepost in Redis or Valkey: two keys per thread, without modules, any number of processes."""

from __future__ import annotations

from milepost_redis.saver import RedisBackend, RedisSaver, open_backend

__all__ = ["RedisBackend", "RedisSaver", "open_backend"]
