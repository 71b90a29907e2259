"""What a user's past is reduced to, and the one way in which it changes."""
