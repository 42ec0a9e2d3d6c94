"""The networks, as plain PyTorch modules without loss, training loop or exporter."""

from models.nets.densenet import DenseNet
from models.nets.llama import Llama
from models.nets.mlp import MLP
from models.nets.resnet import ResNet, resnet18, resnet50
from models.nets.transformer import GPT, BERTClassifier, ViT
from models.nets.translator import Translator
from models.nets.unet import UNet
from models.nets.unet3d import UNet3d
from models.nets.wide_resnet import WideResNet

__all__ = [
    "GPT",
    "MLP",
    "BERTClassifier",
    "DenseNet",
    "Llama",
    "ResNet",
    "Translator",
    "UNet",
    "UNet3d",
    "ViT",
    "WideResNet",
    "resnet18",
    "resnet50",
]
