"""Where what outlives a step is kept: parameters, optimizer state, other inputs, gradients, new values.

    resident   "device": on the device throughout, as a session keeps inputs and outputs.
               "host": in host memory; nodes of the model copy to the device what is needed, when it is
               needed, and to the host what is made.
               "auto": each where the plan takes less time.
    feeds      "host": the caller feeds arrays of the host and wants such. A session copies them in any
               case, at the beginning and at the end of a run, so that one copy of each costs nothing.
               "device": the caller binds memory of the device, or the host's memory is the device's.
               Every copy is an added one.
               "auto": "device" where the hardware profile says that memory is shared, else "host".

An initializer is copied to the device when a session is created, and not in a step: its copies are added
ones whatever the caller does.
"""

from __future__ import annotations

from typing import Literal

Reside = Literal["auto", "device", "host"]

Feeds = Literal["auto", "host", "device"]
