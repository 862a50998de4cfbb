"""What central sources say, each read into a ``Reading``.

Parsers are pure and never raise: what they do not understand is counted. A source that has failed has a reason instead.
"""
