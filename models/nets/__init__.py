"""The networks, as plain PyTorch modules: no loss, no training loop, no exporter in sight."""

from models.nets.densenet import DenseNet
from models.nets.mlp import MLP
from models.nets.resnet import ResNet, resnet18, resnet50
from models.nets.transformer import GPT, BERTClassifier, ViT
from models.nets.unet import UNet

__all__ = [
    "GPT",
    "MLP",
    "BERTClassifier",
    "DenseNet",
    "ResNet",
    "UNet",
    "ViT",
    "resnet18",
    "resnet50",
]
