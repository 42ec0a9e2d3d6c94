"""temporary"""


def device_bytes(graph, order, target):
    return 0
