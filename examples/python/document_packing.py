"""Documents of unequal length in one row: attention stays inside each document, and tiles between documents are never computed."""

import torch

import foveal.torch

lengths = [300, 37, 512, 175]
ids = torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), torch.tensor(lengths))
q, k, v = (torch.randn(1, len(ids), 4, 64) for _ in range(3))


def same_document(b, h, q_idx, kv_idx):
    return (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)


packed = foveal.torch.attention(q, k, v, mask=same_document)

# The same with cumulative lengths instead of a mask, and one document at a time.
cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
varlen = foveal.torch.attention(q[0], k[0], v[0], mask=foveal.causal(), cu_seqlens=(cu, cu), max_seqlens=(max(lengths),) * 2)
alone = torch.cat([foveal.torch.attention(q[:, a:b], k[:, a:b], v[:, a:b], mask=foveal.causal()) for a, b in zip(cu, cu[1:])], 1)

print(foveal.explain(q, k, v, mask=same_document)["text"])
print("mask against one at a time:   ", (packed - alone).abs().max().item())
print("varlen against one at a time: ", (varlen - alone[0]).abs().max().item())
assert torch.allclose(packed, alone, atol=1e-5) and torch.allclose(varlen, alone[0], atol=1e-5)
