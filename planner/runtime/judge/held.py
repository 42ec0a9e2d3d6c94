"""What a verification says of a plan that the arena does not hold. Light: planning reads it."""

NO_ROOM = "ONNX Runtime's arena has no room for the rewritten model within the budget"
