"""What ysactor logs becomes an event, and logging is as before afterwards."""

from __future__ import annotations

import logging

from ysactor.cli.events import Event, Events, listening


def test_what_is_logged_from_info_up_is_heard_for_the_length_of_the_block_only() -> None:
    heard: list[Event] = []
    events = Events(heard.append)
    logger = logging.getLogger("ysactor.cluster")
    logger.warning("before")
    with listening(events):
        logger.debug("too quiet")
        logger.info("%s is back", "it")
        logger.warning("it is down")
    logger.warning("after")
    assert [(event.text, event.weight) for event in heard] == [("it is back", "plain"), ("it is down", "bad")]
    assert events.lines == heard


def test_logging_is_put_back_as_it_was() -> None:
    logger = logging.getLogger("ysactor")
    before = (logger.level, logger.propagate, list(logger.handlers))
    with listening(Events(lambda _: None)):
        assert not logger.propagate
    assert (logger.level, logger.propagate, logger.handlers) == before


def test_an_event_has_the_time_of_the_clock_of_its_moment() -> None:
    events = Events(lambda _: None)
    events.say("before")
    events.clock = lambda: 2.5
    events.say("during", "good")
    assert events.lines == [Event(None, "before"), Event(2.5, "during", "good")]
