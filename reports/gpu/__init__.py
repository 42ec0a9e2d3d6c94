"""What has to be asked of a machine with an NVIDIA GPU: `python -m reports.gpu`."""
