"""Lower tiers: host memory and disk, and the transfers between them and the device."""
