"""Mixers of tokens with a state, each with random weights and what `transformers` makes of random rows, for the tests of `src/blocks/mixer`.

    python scripts/make_state_vectors.py

Needs torch, transformers and safetensors; runs on a CPU in seconds. Every case is a folder of tests/vectors/states with a
`model.safetensors` of the mixer's tensors under `mixer.`, and `input` and `output`, [ROWS, hidden_size].
"""

import contextlib
import pathlib

import torch
from make_vectors import randomise
from safetensors.torch import save_file
from transformers import FalconH1Config, GraniteMoeHybridConfig, KimiLinearConfig, Lfm2Config, Mamba2Config, MiniMaxConfig, NemotronHConfig
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1Mixer
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import GraniteMoeHybridMambaLayer
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMamba2Mixer

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "vectors" / "states"
ROWS, HIDDEN = 100, 16


def short_convolution(kernel, biased):
    config = Lfm2Config(hidden_size=HIDDEN, num_hidden_layers=1, layer_types=["conv"], conv_L_cache=kernel, conv_bias=biased)
    return Lfm2ShortConv(config, 0)


def mamba2():
    return Mamba2Mixer(Mamba2Config(hidden_size=HIDDEN, expand=3, num_heads=6, head_dim=8, state_size=12, n_groups=2, conv_kernel=4, use_bias=True,
                                    time_step_limit=(0.5, 0.9), chunk_size=32), 0)


def nemotron_h():
    return NemotronHMamba2Mixer(NemotronHConfig(hidden_size=HIDDEN, mamba_num_heads=3, mamba_head_dim=12, ssm_state_size=20, n_groups=3, conv_kernel=3,
                                                use_conv_bias=False, time_step_min=0.4, chunk_size=32, layers_block_type=["linear_attention", "full_attention"]), 0)


def granite():
    return GraniteMoeHybridMambaLayer(GraniteMoeHybridConfig(hidden_size=HIDDEN, num_hidden_layers=1, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=16, mamba_n_groups=1,
                                                             mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=32, num_local_experts=0), 0)


def falcon_h1(heads, width, **more):
    mixer = FalconH1Mixer(FalconH1Config(hidden_size=HIDDEN, num_hidden_layers=1, mamba_d_ssm=heads * width, mamba_n_heads=heads, mamba_d_head=width, mamba_d_state=8,
                                         mamba_n_groups=2, mamba_d_conv=4, mamba_chunk_size=32, num_attention_heads=2, num_key_value_heads=1, **more), 0)
    # The multipliers are the family's.
    mixer.mup_vector, mixer.ssm_in_multiplier = 1.0, 1.0
    return mixer


def kimi_delta(heads, width, kernel):
    return KimiLinearDeltaAttention(KimiLinearConfig(hidden_size=HIDDEN, num_hidden_layers=1, layer_types=["linear_attention"], linear_head_dim=width,
                                                     linear_num_heads=heads, linear_conv_kernel_dim=kernel), 0)


def lightning():
    config = MiniMaxConfig(hidden_size=HIDDEN, num_hidden_layers=3, num_attention_heads=4, head_dim=12, layer_types=["linear_attention"] * 3, block_size=32)
    mixer = MiniMaxLightningAttention(config, 1)
    return Wrapped(mixer, position_embeddings=None, attention_mask=None)


class Wrapped(torch.nn.Module):
    """A mixer that takes more arguments and gives more than its output."""

    def __init__(self, mixer, **more):
        super().__init__()
        self.mixer, self.more = mixer, more

    def forward(self, rows):
        return self.mixer(rows, **self.more)[0]

    def named_parameters(self, *rest, **more):
        return self.mixer.named_parameters(*rest, **more)


# The seed is the case's place in the list.
CASES = {
    "short_convolution": lambda: short_convolution(3, False),
    "short_convolution_biased": lambda: short_convolution(4, True),
    "mamba2": mamba2,
    "nemotron_h": nemotron_h,
    "granite": granite,
    "falcon_h1": lambda: falcon_h1(4, 8, mamba_rms_norm=True, mamba_norm_before_gate=True),
    # Heads of more than 64 values.
    "falcon_h1_wide": lambda: falcon_h1(2, 72, mamba_rms_norm=False, mamba_proj_bias=True),
    "kimi_delta": lambda: kimi_delta(3, 8, 4),
    "kimi_delta_wide": lambda: kimi_delta(1, 72, 3),
    "lightning": lightning,
}


@contextlib.contextmanager
def doubles():
    """Has what the modules compute in 32 bits computed in 64: the chunks of Kimi Linear lose more than Riffle's tests allow."""
    single, method = torch.float32, torch.Tensor.float
    torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.Tensor.float = single, method


def main():
    for seed, (name, make) in enumerate(CASES.items()):
        mixer = make().eval().float()
        randomise(mixer, 3000 + seed)
        rows = torch.randn((ROWS, HIDDEN), generator=torch.Generator().manual_seed(seed))
        tensors = {f"mixer.{name}": value.detach().clone().contiguous() for name, value in mixer.named_parameters()}
        with torch.no_grad():
            if name.startswith("kimi_delta"):
                mixer = mixer.double()
                with doubles():
                    output = mixer(rows.double()[None])[0].to(rows.dtype)
            else:
                output = mixer(rows[None])[0]
        folder = OUT / name
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors | {"input": rows, "output": output.contiguous()}, folder / "model.safetensors")
        size = (folder / "model.safetensors").stat().st_size
        print(f"{name}: {size} bytes, outputs deviate by {output.std():.2f}, {sorted(mixer.state_dict())}")


if __name__ == "__main__":
    main()
