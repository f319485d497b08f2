"""Milepost in PostgreSQL: four tables in a schema of their own, any number of processes."""

from __future__ import annotations

from milepost_postgres.saver import PostgresBackend, PostgresSaver, open_backend, print_sql

__all__ = ["PostgresBackend", "PostgresSaver", "open_backend", "print_sql"]
