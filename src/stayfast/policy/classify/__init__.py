"""Small classifiers: linear heads over the vector of a text, their calibration and training, and the patterns of guards."""
