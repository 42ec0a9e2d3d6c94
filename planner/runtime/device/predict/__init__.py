"""What a device's allocator and placement will do, predicted."""
