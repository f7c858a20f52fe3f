"""Shells: one border per foreign thing (sockets, kazoo, files). They act; deciders decide."""
