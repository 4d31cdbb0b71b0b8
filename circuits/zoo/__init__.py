"""What the models of this package are made of: their weights, one folder a model, the little languages that
they speak, models whose circuit is set by hand, and how well a model does what it was taught.
"""
