"""Engine: moves the bytes of a training off the device and back, as a plan says. It decides nothing."""
