"""Stores: where the records of users are kept. One interface, several implementations."""
