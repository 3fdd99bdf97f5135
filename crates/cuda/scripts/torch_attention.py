"""PyTorch's matmul and scaled_dot_product_attention on the shapes of `riffle bench attention --device cuda`, as JSON."""

import json
import statistics

import torch
import torch.nn.functional as F


def time_ms(work, repeats=20):
    work()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def attention(rows, tokens, dtype, heads=32, kv_heads=8, head_dim=128):
    q = torch.randn(1, heads, rows, head_dim, device="cuda", dtype=dtype)
    k, v = (torch.randn(1, kv_heads, tokens, head_dim, device="cuda", dtype=dtype) for _ in range(2))
    causal = rows == tokens
    ms = time_ms(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True))
    pairs = tokens * (tokens + 1) // 2 if causal else rows * tokens
    return {
        "rows": rows,
        "tokens": tokens,
        "dtype": str(dtype),
        "median_ms": ms,
        "teraflops": 4 * pairs * heads * head_dim / ms / 1e9,
        "gigabytes_per_s": 2 * tokens * kv_heads * head_dim * 2 / ms / 1e6,
    }


def main():
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    matmul_ms = time_ms(lambda: a @ b)
    block = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    other = torch.empty_like(block)
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    cases = [(32768, 32768, torch.bfloat16), (4096, 4096, torch.float16), (1, 16384, torch.float16), (1, 131072, torch.float16)]
    print(
        json.dumps(
            {
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "matmul_teraflops": 2 * 8192**3 / matmul_ms / 1e9,
                "copy_gigabytes_per_s": 2 * (1 << 30) / time_ms(lambda: other.copy_(block)) / 1e6,
                "upload_gigabytes_per_s": (1 << 30) / time_ms(lambda: block.copy_(host, non_blocking=True)) / 1e6,
                "attention": [attention(*case) for case in cases],
            },
            indent=2,
        )
    )


main()
