"""What applications use to test their own use of ysactor, and what ysactor is tested with.

A `FakeCluster` is a world of servers; `FakeDriver(cluster)` lets a pool live in it.
"""

from .cluster import FakeCluster
from .driver import FakeDriver
from .journal import Asked, CancelRequested, Closed, Dialled, Journal, LoggedIn, Record
from .pgerrors import error
from .rows import Result, Row
from .scripts import Answer, Statement
from .server import Condition, FakeServer, SessionView
from .session import FakeSession
from .table import Table

__all__ = [
    "Answer",
    "Asked",
    "CancelRequested",
    "Closed",
    "Condition",
    "Dialled",
    "FakeCluster",
    "FakeDriver",
    "FakeServer",
    "FakeSession",
    "Journal",
    "LoggedIn",
    "Record",
    "Result",
    "Row",
    "SessionView",
    "Statement",
    "Table",
    "error",
]
