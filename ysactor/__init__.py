"""Supervised, topology-aware connection pools for YugabyteDB and PostgreSQL, on Trio and asyncpg.

Everything public is here; `ysactor.testing` has what tests need.
"""

from .client import Cluster, open_cluster, open_pool, run_pool
from .cluster.info import ClusterInfo
from .connection.handle import Connection
from .connection.statements import Cursor, CursorFactory, CursorIterator, PreparedStatement
from .connection.transaction import Transaction
from .errors import (
    CheckoutTimeout,
    CommitOutcomeUnknown,
    ConfigurationError,
    ConnectFailed,
    ConnectionLost,
    Error,
    LeaseEnded,
    LeaseExpired,
    NoNodeAvailable,
    PoolClosed,
    PoolOverloaded,
    RestartLimit,
    Rollback,
    TransactionAborted,
    TransactionEnded,
)
from .policy.classify import classify
from .pool.handle import Pool
from .pool.lease import Acquire
from .pool.statistics import PoolStatistics
from .servers import Counts, HostPort, NodeType, Server

__version__ = "0.1.0"

__all__ = [
    "Acquire",
    "CheckoutTimeout",
    "Cluster",
    "ClusterInfo",
    "CommitOutcomeUnknown",
    "ConfigurationError",
    "ConnectFailed",
    "Connection",
    "ConnectionLost",
    "Counts",
    "Cursor",
    "CursorFactory",
    "CursorIterator",
    "Error",
    "HostPort",
    "LeaseEnded",
    "LeaseExpired",
    "NoNodeAvailable",
    "NodeType",
    "Pool",
    "PoolClosed",
    "PoolOverloaded",
    "PoolStatistics",
    "PreparedStatement",
    "RestartLimit",
    "Rollback",
    "Server",
    "Transaction",
    "TransactionAborted",
    "TransactionEnded",
    "__version__",
    "classify",
    "open_cluster",
    "open_pool",
    "run_pool",
]
