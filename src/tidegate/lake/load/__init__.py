"""The load: tables read from the upstream database or a dump at one instant, then followed.

An initial load is the first recorded step of a lake: its tables come from the database instead of
the changelog. `state` has the rule, `sources` what can be loaded from, `loader` the work.
"""
