"""Networks to train and to learn from: plain code over tensors, with shapes in comments.

Those of text generate with a cache and one compiled step. Those with the shapes of Llama, Qwen,
GPT-2, BERT, ViT, CLIP and Whisper take the files of published models: `load_pretrained(folder)`;
nothing is downloaded.

>>> import weft as wf
>>> net = wf.models.GPT(wf.models.GPTConfig(vocabulary=65, width=16, layers=1, heads=2, context=32))
>>> net.generate([1, 2, 3], max_new_tokens=5, seed=1).shape
(8,)
"""

from weft.models.autoencoder import VAE
from weft.models.bert import BERT, BERTConfig
from weft.models.checkpoints import KeyReport, load_checkpoint
from weft.models.clip import CLIP, CLIPConfig
from weft.models.diffusion import Diffusion, ImageDenoiser, PointDenoiser
from weft.models.generation import LanguageModel, token_step
from weft.models.gpt import GPT, GPT2
from weft.models.gpt_config import GPTConfig
from weft.models.interests import DIN, MMoE, TargetAttention
from weft.models.lenet import LeNet
from weft.models.llama import Llama
from weft.models.llama2c import load_llama2c, load_llama2c_tokenizer
from weft.models.llama_config import LlamaConfig
from weft.models.lora import LoRALinear, add_lora, lora_parameters, merge_lora
from weft.models.perceptron import MLP
from weft.models.pieces import PieceTokenizer
from weft.models.pretrained import Pretrained, load_pretrained
from weft.models.recommendation import DLRM, DeepFM, WideAndDeep, hashed
from weft.models.recurrent import LSTMLanguageModel
from weft.models.resnet import ResNet, resnet18, resnet34, resnet50
from weft.models.tokenization import ByteLevelTokenizer, read_tokenizer
from weft.models.translation import Seq2Seq
from weft.models.unet import UNet
from weft.models.vgg import VGG, vgg19
from weft.models.vit import ViT, ViTConfig
from weft.models.weight_files import read_weights
from weft.models.whisper import Whisper, WhisperConfig
from weft.models.wordpiece import WordPieceTokenizer

__all__ = [
    "BERT", "CLIP", "DIN", "DLRM", "GPT", "GPT2", "MLP", "VAE", "VGG", "BERTConfig",
    "ByteLevelTokenizer", "CLIPConfig", "DeepFM", "Diffusion", "GPTConfig", "ImageDenoiser",
    "KeyReport", "LSTMLanguageModel", "LanguageModel", "LeNet", "Llama", "LlamaConfig",
    "LoRALinear", "MMoE", "PieceTokenizer", "PointDenoiser", "Pretrained", "ResNet", "Seq2Seq",
    "TargetAttention", "UNet", "ViT", "ViTConfig", "Whisper", "WhisperConfig", "WideAndDeep",
    "WordPieceTokenizer", "add_lora", "hashed", "load_checkpoint", "load_llama2c",
    "load_llama2c_tokenizer", "load_pretrained", "lora_parameters", "merge_lora",
    "read_tokenizer", "read_weights", "resnet18", "resnet34", "resnet50", "token_step", "vgg19",
]  # fmt: skip
