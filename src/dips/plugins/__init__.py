"""User-defined classes, loaded by import name `package.module:Class`."""
