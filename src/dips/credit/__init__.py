"""How much a decision helped later predictions: which interaction's weight helps which one."""
