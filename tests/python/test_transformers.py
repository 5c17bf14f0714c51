"""attn_implementation="foveal" beside eager: tiny random models, forward, gradients, padding, packed sequences, caches, generate()."""

import sys
import unittest.mock
import warnings

import pytest
import torch
import transformers as hf
from transformers import masking_utils

import foveal.transformers
from places import seeded

foveal.transformers.register()
hf.logging.set_verbosity_error()

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128)
GROUPED = dict(**SIZES, num_key_value_heads=2)
NO_TOKENS = dict(bos_token_id=1, eos_token_id=None, pad_token_id=0)

DECODERS = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, **NO_TOKENS)),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=128, scale_attn_by_inverse_layer_idx=True, attn_pdrop=0, resid_pdrop=0,
                      embd_pdrop=0, **NO_TOKENS)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**GROUPED, head_dim=8, sliding_window=5, attn_logit_softcapping=2.0, query_pre_attn_scalar=11, **NO_TOKENS)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=5, layer_types=["sliding_attention", "full_attention"], **NO_TOKENS)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**GROUPED, sliding_window=5, **NO_TOKENS)),
    "doge": lambda: hf.DogeForCausalLM(hf.DogeConfig(**GROUPED, **NO_TOKENS)),  # whose masks leave out what is a BlockMask
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED, head_dim=8, **NO_TOKENS)),
    "deepseek v3": lambda: hf.DeepseekV3ForCausalLM(
        hf.DeepseekV3Config(**SIZES, num_key_value_heads=4, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
                            first_k_dense_replace=1, kv_lora_rank=8, q_lora_rank=12, qk_rope_head_dim=4, qk_nope_head_dim=6, v_head_dim=10, **NO_TOKENS)),
    "deepseek v3.2": lambda: hf.DeepseekV32ForCausalLM(  # which takes pairs out of the mask that it is given
        hf.DeepseekV32Config(**SIZES, num_key_value_heads=4, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
                             first_k_dense_replace=1, kv_lora_rank=8, q_lora_rank=12, qk_rope_head_dim=4, qk_nope_head_dim=6, v_head_dim=10, index_topk=3,
                             index_head_dim=8, index_n_heads=2, **NO_TOKENS)),
    "gpt-oss": lambda: hf.GptOssForCausalLM(
        hf.GptOssConfig(**GROUPED, head_dim=8, sliding_window=5, num_local_experts=4, num_experts_per_tok=2, **NO_TOKENS)),
    "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4, hidden_dropout=0.0, attention_dropout=0.0, **NO_TOKENS)),
    "mpt": lambda: hf.MptForCausalLM(hf.MptConfig(vocab_size=64, d_model=32, n_layers=2, n_heads=4, expansion_ratio=2, max_seq_len=64, **NO_TOKENS)),
    "falcon": lambda: hf.FalconForCausalLM(
        hf.FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=False, new_decoder_architecture=True,
                        num_kv_heads=2, **NO_TOKENS)),
    "falcon multi query": lambda: hf.FalconForCausalLM(
        hf.FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=False, new_decoder_architecture=False,
                        multi_query=True, **NO_TOKENS)),
    "falcon alibi": lambda: hf.FalconForCausalLM(
        hf.FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True, new_decoder_architecture=False,
                        multi_query=False, **NO_TOKENS)),
}  # fmt: skip

def made(factory):
    torch.manual_seed(0)
    model = factory().eval()
    with torch.no_grad():  # sinks and biases are made empty or zero
        for parameter in model.parameters():
            if parameter.dim() < 2 or not torch.isfinite(parameter).all():
                parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if parameter.dim() == 1 else 0.0))
    return model


def choose(model, implementation):
    """Also for models that take it only when they are made: Bloom, Falcon, MPT."""
    model.set_attn_implementation(implementation)
    model.config._attn_implementation = implementation


def both(model, run):
    """What run(model) gives by foveal, and by eager; by SDPA for Falcon with ALiBi, which its eager code adds twice, to the scores and to the mask."""
    results = []
    beside = "sdpa" if getattr(model.config, "alibi", False) else "eager"
    for implementation in ("foveal", beside):
        choose(model, implementation)
        model.zero_grad()
        with unittest.mock.patch.object(foveal.transformers.attention, "call", wraps=foveal.transformers.attention.call) as calls:
            results.append(run(model))
        assert calls.called == (implementation == "foveal")
    return results


def close(found, expected, tolerance=2e-5):
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def tokens(batch=2, length=13):
    return torch.randint(2, 64, (batch, length), generator=seeded(1))


def left_padding(ids):
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    return mask


def labels_of(ids, mask):
    """Of the tokens that a token comes before: what a row of padding gives is anybody's."""
    return ids if mask is None else ids.masked_fill((mask == 0) | (mask.roll(1, 1) == 0), -100)


def trained(ids, mask=None, **rest):
    """logits where there is a token, and every gradient."""

    def run(model):
        result = model(input_ids=ids, attention_mask=mask, labels=labels_of(ids, mask), use_cache=False, **rest)
        result.loss.backward()
        kept = result.logits if mask is None else result.logits[mask.bool()]
        return [kept.detach(), *[parameter.grad for parameter in model.parameters()]]

    return run


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("padded", [False, True])
def test_decoders(name, padded):
    model, ids = made(DECODERS[name]), tokens()
    close(*both(model, trained(ids, left_padding(ids) if padded else None)))


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral"])
def test_packed_sequences_by_positions(name):
    """Three sequences in one row, told apart by their positions; and the loss of each alone."""
    model, ids = made(DECODERS[name]), tokens(1, 18)
    lengths = [5, 9, 4]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    close(*both(model, trained(ids, position_ids=positions)))
    model.set_attn_implementation("foveal")
    packed = model(ids, position_ids=positions, use_cache=False).logits[0]
    alone = torch.cat([model(part[None], use_cache=False).logits[0] for part in ids[0].split(lengths)])
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-5)


def test_packed_sequences_by_cu_seq_lens():
    """As flash attention's collator hands them over: the lengths say what sees what, also without positions."""
    model, ids = made(DECODERS["llama"]), tokens(1, 18)
    lengths = [5, 9, 4]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    cu = torch.tensor([0, 5, 14, 18], dtype=torch.int32)
    model.set_attn_implementation("foveal")
    packed = dict(cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=9, max_length_k=9)
    expected = model(ids, position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(model(ids, position_ids=positions, use_cache=False, **packed).logits, expected, rtol=1e-5, atol=1e-5)
    together = model(ids, use_cache=False).logits
    apart = model(ids, use_cache=False, **packed).logits
    assert not torch.allclose(together, apart, atol=1e-3)
    torch.testing.assert_close(apart[0, :5], expected[0, :5], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate(name, cache):
    if (name, cache) == ("falcon alibi", "static"):
        pytest.skip("transformers builds its ALiBi from a mask of two dimensions, and makes one of four for a static cache")
    model, ids = made(DECODERS[name]), tokens(2, 7)
    arguments = dict(attention_mask=left_padding(ids), max_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_logits=True)
    if cache == "static":
        arguments["cache_implementation"] = "static"
    found, expected = both(model, lambda model: model.generate(ids, **arguments))
    assert torch.equal(found.sequences, expected.sequences)
    close(found.logits, expected.logits, 1e-4)


def test_a_growing_cache_is_one_program():
    model, ids = made(DECODERS["llama"]), tokens(2, 7)
    model.set_attn_implementation("foveal")
    model.generate(ids, max_new_tokens=4, do_sample=False)
    before = len(foveal.describe._programs)
    model.generate(ids, max_new_tokens=12, do_sample=False)
    assert len(foveal.describe._programs) == before


def test_t5():
    model = made(lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
                    eos_token_id=None)))  # fmt: skip
    ids, labels = tokens(), tokens(2, 6)
    mask = left_padding(ids)

    def run(model):
        result = model(input_ids=ids, attention_mask=mask, labels=labels)
        result.loss.backward()
        return [result.logits.detach(), *[parameter.grad for parameter in model.parameters()]]

    close(*both(model, run))
    found, expected = both(model, lambda model: model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False))
    assert torch.equal(found, expected)


def test_bert():
    model = made(lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)))
    ids = tokens()
    mask = left_padding(ids)

    def run(model):
        result = model(input_ids=ids, attention_mask=mask, labels=labels_of(ids, mask))
        result.loss.backward()
        return [result.logits[mask.bool()].detach(), *[parameter.grad for parameter in model.parameters()]]

    close(*both(model, run))


def test_vit():
    sizes = {name: SIZES[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")}
    model = made(lambda: hf.ViTForImageClassification(
        hf.ViTConfig(**sizes, image_size=16, patch_size=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)))  # fmt: skip
    pixels = torch.randn(2, 3, 16, 16)

    def run(model):
        result = model(pixel_values=pixels, labels=torch.tensor([0, 1]))
        result.loss.backward()
        return [result.logits.detach(), *[parameter.grad for parameter in model.parameters()]]

    close(*both(model, run))


def test_whisper():
    model = made(lambda: hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(vocab_size=64, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                         decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=20, max_target_positions=32, dropout=0.0,
                         pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)))  # fmt: skip
    features, labels = torch.randn(2, 8, 40), tokens(2, 6)

    def run(model):
        result = model(input_features=features, labels=labels)
        result.loss.backward()
        return [result.logits.detach(), *[parameter.grad for parameter in model.parameters()]]

    close(*both(model, run))


def test_dropout_is_of_the_training_mode_alone():
    model = made(lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, attention_dropout=0.5)))
    model.set_attn_implementation("foveal")
    ids = tokens()
    assert torch.equal(model(ids).logits, model(ids).logits)
    model.train()
    torch.manual_seed(3)
    first = model(ids).logits
    assert not torch.allclose(first, model(ids).logits, atol=1e-3)
    torch.manual_seed(3)
    assert torch.equal(first, model(ids).logits)


def test_custom_masks_of_four_dimensions():
    model, ids = made(DECODERS["llama"]), tokens()
    kept = torch.ones(13, 13, dtype=torch.bool).tril() & (torch.rand(2, 1, 13, 13, generator=seeded(2)) < 0.7) | torch.eye(13, dtype=torch.bool)
    for mask in (kept, torch.zeros(kept.shape).masked_fill(~kept, torch.finfo(torch.float32).min)):
        added = torch.zeros(kept.shape).masked_fill(~kept, torch.finfo(torch.float32).min)
        model.set_attn_implementation("eager")
        expected = model(ids, attention_mask=added, use_cache=False).logits
        model.set_attn_implementation("foveal")
        torch.testing.assert_close(model(ids, attention_mask=mask, use_cache=False).logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["falcon", "falcon multi query"])
def test_custom_masks_in_modules_with_attention_of_their_own(name):
    """Falcon added True and False as 1 and 0 to scores that another implementation than SDPA was to compute."""
    model, ids = made(DECODERS[name]), tokens()
    kept = torch.ones(13, 13, dtype=torch.bool).tril() & (torch.rand(2, 1, 13, 13, generator=seeded(2)) < 0.7) | torch.eye(13, dtype=torch.bool)
    for mask in (kept, torch.zeros(kept.shape).masked_fill(~kept, torch.finfo(torch.float32).min)):
        choose(model, "sdpa")
        expected = model(ids, attention_mask=mask, use_cache=False).logits
        choose(model, "foveal")
        torch.testing.assert_close(model(ids, attention_mask=mask, use_cache=False).logits, expected, rtol=1e-5, atol=1e-5)


def test_compiled_falcon_adds_its_alibi_once():
    """Its mask is a tensor there, and the way of eager attention added ALiBi to the scores, too."""
    model, ids = made(DECODERS["falcon alibi"]), tokens()
    mask = left_padding(ids)
    choose(model, "sdpa")
    expected = model(ids, attention_mask=mask, use_cache=False).logits[mask.bool()]
    choose(model, "foveal")
    for run in (model, torch.compile(model, backend="eager")):
        torch.testing.assert_close(run(ids, attention_mask=mask, use_cache=False).logits[mask.bool()], expected, rtol=1e-5, atol=1e-5)


def test_masks_are_expressions():
    q = torch.zeros(2, 4, 13, 8)
    mask = foveal.transformers.attention_mask(2, 13, 13, attention_mask=left_padding(tokens()).bool())
    assert isinstance(mask, foveal.transformers.Mask) and mask.shape == (2, 1, 13, 13) and list(mask.params) == ["p0"]
    assert repr(foveal.transformers.attention_mask(2, 1, 9, q_offset=8).expr) == repr(foveal.transformers.attention_mask(2, 1, 10, q_offset=9).expr)
    with pytest.raises(NotImplementedError, match="attn_implementation='eager'"):
        q.sum() + mask
    with pytest.raises(ValueError, match="attention_mask: for batch 2, 13 queries, 13 keys; expected batch 2, 12 queries, 12 keys"):
        foveal.transformers.attention_forward(torch.nn.Module(), *[q[:, :, :12]] * 3, mask)
    with pytest.raises(ValueError, match="attention_mask: for batch 2, 13 queries, 13 keys; expected batch 4, 13 queries, 13 keys"):  # no row of the first two
        foveal.transformers.attention_forward(torch.nn.Module(), *[q.repeat(2, 1, 1, 1)] * 3, mask)


PLACES = {  # q_length, kv_length, q_offset, kv_offset
    "no cache": (5, 5, 0, 0), "growing": (3, 9, 6, 0), "one token": (1, 9, 8, 0), "static": (3, 12, torch.tensor(4), 0),
    "static, first": (5, 12, torch.tensor(0), 0), "window": (2, 6, 9, 5), "other keys": (3, 7, 0, 0), "moved": (4, 6, torch.tensor(3), torch.tensor(2)),
}  # fmt: skip
FUNCTIONS = {
    "causal": masking_utils.causal_mask_function,
    "sliding": masking_utils.sliding_window_causal_mask_function(4),
    "bidirectional": masking_utils.bidirectional_mask_function,
    "bidirectional window": masking_utils.sliding_window_bidirectional_mask_function(3),
    "causal, or in a block": masking_utils.or_masks(masking_utils.causal_mask_function, lambda b, h, q, k: q // 4 == k // 4),
}


def padding_masks(end):
    """Of every length around the number of positions, with and without padding."""
    for length in (1, end - 3, end - 1, end, end + 2):
        ones = torch.ones(2, max(length, 1), dtype=torch.bool)
        left, right = ones.clone(), ones.clone()
        left[0, :2], right[1, -1:] = False, False
        yield from (ones, left, right)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("place", PLACES)
def test_padding_masks_of_any_length(place, function):
    """What a mask does not reach is padding: a mask of ones that was too short hid nothing."""
    q_length, kv_length, q_offset, kv_offset = PLACES[place]
    for padding in padding_masks(int(kv_offset + kv_length)):
        arguments = dict(q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset, mask_function=FUNCTIONS[function])
        expected = masking_utils.sdpa_mask(2, **arguments, attention_mask=padding, allow_is_causal_skip=False)
        for config in (None, hf.LlamaConfig()):
            mask = foveal.transformers.attention_mask(2, **arguments, attention_mask=padding, config=config, allow_is_bidirectional_skip=True)
            assert mask is None or isinstance(mask, foveal.transformers.Mask)
            zeros, keys = torch.zeros(2, 1, max(q_length, kv_length), 8), torch.eye(kv_length).expand(2, 1, -1, -1)
            module = torch.nn.Module()
            module.is_causal = False
            out = foveal.transformers.attention_forward(module, zeros[:, :, :q_length], zeros[:, :, :kv_length], keys, mask)[0]
            assert torch.equal(out.transpose(1, 2) > 0, expected), (padding.shape, padding)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("cached", [0, 6])
def test_short_masks_of_ones(name, cached):
    """The later tokens are padding to transformers."""
    model, ids = made(DECODERS[name]), tokens(2, 9)

    def run(model):
        past = hf.DynamicCache(config=model.config)
        if cached:
            model(ids[:, :cached], past_key_values=past)
        return [model(ids[:, cached:], attention_mask=torch.ones(2, 7, dtype=torch.long), past_key_values=past).logits.detach()]

    close(*both(model, run))


@pytest.mark.parametrize("words", ["output_attentions", "cache"])
def test_refusals(words):
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(NotImplementedError, match=f"attn_implementation='foveal': {words}"):
        foveal.transformers.attention_forward(torch.nn.Module(), q, q, q, None, **{words: True})


@pytest.mark.parametrize("name, compiled", [("llama", False), ("gpt2", False), ("bloom", False), ("gpt2", True)])
def test_recorded_probabilities_are_refused(name, compiled):
    """GPT-2's layers are not told what hooks record of them: its attentions were empty."""
    model = made(DECODERS[name])
    choose(model, "foveal")
    call = torch.compile(model, backend="eager") if compiled else model
    with pytest.raises(NotImplementedError, match="attn_implementation='foveal': output_attentions"):
        call(tokens(), output_attentions=True)
    assert len(call(tokens(), output_hidden_states=True).hidden_states) == 3


@pytest.mark.parametrize("use", [lambda m: m.size(), lambda m: m.masked_fill(m, 0), lambda m: m[:, :, 0], lambda m: 1.0 - m, lambda m: ~m, lambda m: m * 2, lambda m: m & m],
                         ids="size masked_fill getitem rsub invert mul and".split())  # fmt: skip
def test_models_that_compute_with_their_mask_are_told(use):
    """As Mvp, XGLM, LED, TrOCR and Longformer do."""
    mask = foveal.transformers.attention_mask(2, 5, 5, allow_is_causal_skip=False)
    with pytest.raises(NotImplementedError, match="attn_implementation='foveal': .* of an attention mask: this model computes with its mask by itself"):
        use(mask)
    assert not hasattr(mask, "no_such_name")


def deepseek_v4():
    """Keys that it makes itself stand beside those of its mask."""
    kinds = ["heavily_compressed_attention", "compressed_sparse_attention"]
    return hf.DeepseekV4ForCausalLM(
        hf.DeepseekV4Config(vocab_size=64, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, head_dim=8,
                            q_lora_rank=8, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, max_position_embeddings=64, layer_types=kinds,
                            sliding_window=5, o_lora_rank=8, index_n_heads=2, index_head_dim=8, qk_rope_head_dim=4, **NO_TOKENS))  # fmt: skip


ENCODER = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
COMPUTE_WITH_THEIR_MASK = {
    "deepseek v4": (deepseek_v4, lambda: dict(input_ids=tokens(), attention_mask=left_padding(tokens()))),
    "siglip 2": (lambda: hf.Siglip2VisionModel(hf.Siglip2VisionConfig(**ENCODER, patch_size=4, num_patches=16)),
                 lambda: dict(pixel_values=torch.randn(2, 16, 48, generator=seeded(4)), pixel_attention_mask=(torch.arange(16) < torch.tensor([[9], [16]])).long(),
                              spatial_shapes=torch.tensor([[3, 3], [4, 4]]))),
    "beit": (lambda: hf.BeitForImageClassification(hf.BeitConfig(**ENCODER, image_size=16, patch_size=4, use_relative_position_bias=True)),
             lambda: dict(pixel_values=torch.randn(2, 3, 16, 16, generator=seeded(4)))),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTE_WITH_THEIR_MASK)
def test_models_that_compute_with_their_mask_before_attention(name):
    """They were refused, though all that they need is a tensor."""
    factory, inputs = COMPUTE_WITH_THEIR_MASK[name]
    close(*both(made(factory), lambda model: [model(**inputs())[0].detach()]), tolerance=1e-4)


@pytest.mark.parametrize("name", ["RoFormer", "MPNet", "MegatronBert", "DeepSeek V4"])
def test_compiled_models_that_add_their_mask(name):
    """Their masks were of bool, and True and False were added as 1 and 0."""
    if name == "DeepSeek V4":
        model = made(deepseek_v4)
    else:
        config = getattr(hf, f"{name}Config")(vocab_size=64, **ENCODER, max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        model = made(lambda: getattr(hf, f"{name}Model")(config))
    ids = tokens()
    mask = left_padding(ids)
    choose(model, "eager")
    expected = model(input_ids=ids, attention_mask=mask)[0][mask.bool()]
    choose(model, "foveal")
    found = torch.compile(model, backend="eager")(input_ids=ids, attention_mask=mask)[0][mask.bool()]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_mask_that_is_a_tensor_for_its_model():
    """What keeps its meaning: positions are taken, repeated, put together; True and False are no numbers."""
    hf.BeitModel  # noqa: B018 - loads its module, which is asked
    config = hf.BeitConfig()
    padding = left_padding(tokens()).bool()
    make = lambda: foveal.transformers.attention_mask(2, 13, 13, attention_mask=padding, config=config)  # noqa: E731
    expected = torch.ones(13, 13, dtype=torch.bool).tril() & padding[:, None, None, :]
    assert "attention mask" not in str(make()) and "kv_idx" in str(make())
    assert torch.equal(make()[:, 0, 3:5], expected[:, 0, 3:5]) and torch.equal(~make(), ~expected)
    assert torch.equal(torch.cat([make(), make()], -1), torch.cat([expected] * 2, -1)) and make().dtype == torch.bool
    assert torch.equal(make().to("cpu").repeat(1, 4, 1, 1), expected.repeat(1, 4, 1, 1))
    offset = torch.tensor(3)
    late = foveal.transformers.attention_mask(1, 2, 8, q_offset=offset, config=config)
    offset += 4  # as a static cache does
    assert torch.equal(~late, ~torch.ones(8, 8, dtype=torch.bool).tril()[None, None, 3:5])
    for use in (lambda m: m + 1.0, lambda m: 1.0 - m, lambda m: torch.zeros(13) + m, lambda m: torch.zeros(13).add_(m), lambda m: torch.mul(m, 2), lambda m: -m):
        with pytest.raises(NotImplementedError, match="attn_implementation='foveal': .* of an attention mask: this model computes with its mask by itself"):
            use(make())


def test_what_a_model_names_where_it_calls_its_attention_is_not_dropped():
    """MiniMax M3 hands the blocks that it chose to any attention but eager's and SDPA's; they were left out."""

    class Sparse(torch.nn.Module):
        def forward(self, x, choice, **kwargs):
            return foveal.transformers.attention_forward(self, x, x, x, None, block_indices=choice, **kwargs)

    x = torch.randn(1, 2, 8, 4)
    Sparse()(x, None, logits_to_keep=1, output_attentions=False, position_ids=torch.arange(8))
    with pytest.raises(NotImplementedError, match="attn_implementation='foveal': block_indices: a part of this model's attention that foveal does not know"):
        Sparse()(x, torch.zeros(1, 8, 2))


@pytest.mark.parametrize("masked", [False, True])
def test_indices_of_sparse_attention(masked):
    q, k, v = torch.randn(3, 2, 4, 7, 8, generator=seeded(5)).unbind()
    indices = torch.rand(2, 7, 9, generator=seeded(6)).argsort(-1)[..., :3].clamp(max=6).int()
    mask = foveal.transformers.attention_mask(2, 7, 7, attention_mask=torch.tensor([[True] * 7, [False] * 2 + [True] * 5])) if masked else None
    out, _ = foveal.transformers.attention_forward(torch.nn.Module(), q, k, v, mask, indices=indices, is_causal=False, cu_seq_lens_q=None)
    kept = torch.zeros(2, 7, 7, dtype=torch.bool).scatter_(-1, indices.long(), True)[:, None]
    if masked:
        kept = kept & torch.ones(7, 7, dtype=torch.bool).tril() & torch.tensor([[True] * 7, [False] * 2 + [True] * 5])[:, None, None]
    expected = torch.softmax((q @ k.mT / 8**0.5).masked_fill(~kept, -torch.inf), -1).nan_to_num() @ v
    torch.testing.assert_close(out, expected.transpose(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*create_block_mask")
def test_what_a_model_alone_knows_is_refused(monkeypatch):
    """Inkling 2 has a sink for each query, which was left out."""
    model = made(DECODERS["llama"])
    kind = type(model.model.layers[0].self_attn)
    monkeypatch.setattr(sys.modules[kind.__module__], "eager_attention_forward", lambda module, query, key, value, attention_mask, sinks=None, **kwargs: None)
    model.set_attn_implementation("foveal")
    model(tokens(), sinks=None)
    with pytest.raises(NotImplementedError, match="attn_implementation='foveal': sinks: a part of this model's attention"):
        model(tokens(), sinks=torch.zeros(2, 4, 13, 1))


def test_transformers_flex_attention_under_patch():
    """With gradients on the CPU, which torch's own has not; and torch's function is back afterwards."""
    model, ids = made(DECODERS["gemma2"]), tokens()
    run = trained(ids, left_padding(ids))
    model.set_attn_implementation("eager")
    model.zero_grad()
    expected = run(model)
    model.set_attn_implementation("flex_attention")
    model.zero_grad()
    with foveal.torch.patch() as routed:
        found = run(model)
    assert routed.calls["flex_attention"] == 2
    close(found, expected)
    from transformers.integrations import flex_attention as integration

    assert integration.flex_attention is torch.nn.attention.flex_attention.flex_attention
    assert not integration.WrappedFlexAttention._instance._is_flex_compiled


def test_models_that_take_no_implementation_are_told():
    """DeBERTa went on with its own attention without a word."""
    sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
    with pytest.warns(UserWarning, match="DebertaV2Model: attn_implementation='foveal' has no effect: this model computes attention in code of its own"):
        hf.AutoModel.from_config(hf.DebertaV2Config(**sizes), attn_implementation="foveal")
    foveal.transformers.register()  # again
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hf.AutoModel.from_config(hf.LlamaConfig(**sizes), attn_implementation="foveal")
        hf.AutoModel.from_config(hf.DebertaV2Config(**sizes))
        hf.AutoModel.from_config(hf.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1), attn_implementation="foveal")
        hf.AutoModel.from_config(hf.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4), attn_implementation="foveal")


TABLES = {
    "GPTJModel": lambda: hf.GPTJForCausalLM(hf.GPTJConfig(vocab_size=64, n_embd=32, n_layer=1, n_head=4, rotary_dim=4, attn_implementation="foveal")),
    "GPTNeoModel": lambda: hf.GPTNeoForCausalLM(
        hf.GPTNeoConfig(vocab_size=64, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], attn_implementation="foveal")),
    "BarkSemanticModel": lambda: hf.BarkSemanticModel(
        hf.BarkSemanticConfig(input_vocab_size=64, output_vocab_size=64, hidden_size=32, num_layers=1, num_heads=4, attn_implementation="foveal")),
    "SamVision(Model|Encoder)": lambda: hf.SamVisionModel(
        hf.SamVisionConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, image_size=32, patch_size=8, mlp_dim=32, output_channels=8,
                           window_size=2, attn_implementation="foveal")),
    "Git(Vision)?Model": lambda: hf.GitModel(
        hf.GitConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, attn_implementation="foveal")),
    "Data2VecVisionModel": lambda: hf.Data2VecVisionModel(
        hf.Data2VecVisionConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, image_size=16, patch_size=8,
                                attn_implementation="foveal")),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_models_that_choose_attention_from_a_table_are_refused(name):
    """They raised KeyError: 'foveal'."""
    for _ in range(2):
        with pytest.raises(NotImplementedError, match=f"attn_implementation='foveal': {name}: .* table of its own, which foveal is not in; expected 'eager'( or|$)"):
            TABLES[name]()


def test_attention_that_a_table_has_chosen_stays():
    config = hf.SamVisionConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, image_size=32, patch_size=8, mlp_dim=32, output_channels=8, window_size=2)
    model = hf.SamVisionModel._from_config(config, attn_implementation="eager")
    with pytest.warns(UserWarning, match="SamVisionModel: attn_implementation='foveal' has no effect on its SamVisionAttention"):
        model.set_attn_implementation("foveal")
