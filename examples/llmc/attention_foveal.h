/* attention_forward() and attention_backward() with the signatures of llm.c's train_gpt2.c, by foveal.
 *
 * inp, dinp: (B, T, 3C). out, dout: (B, T, C). Gradients are added to dinp. att, (B, NH, T, T) in llm.c, keeps what the backward pass
 * needs, (B, NH, T) and (B, T, C), where it has room for them; preatt, dpreatt and datt are not touched. */
#include <foveal/foveal_c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void foveal_attend(foveal_call* call) {
  foveal_attention attention = FOVEAL_INIT(foveal_attention);
  attention.mask = "causal()";
  attention.accumulate = call->pass == FOVEAL_BACKWARD;
  if (foveal_run(&attention, call, NULL, NULL) != FOVEAL_OK) {
    fprintf(stderr, "%s\n", foveal_last_error());
    exit(EXIT_FAILURE);
  }
}

static void foveal_views(foveal_tensor qkv[3], float* inp, foveal_tensor* out, float* out_data, foveal_tensor* lse, float* lse_data, int B,
                         int T, int C, int NH) {
  const int64_t tokens[] = {B, T, NH, NH > 0 ? C / NH : 0}, rows[] = {B, NH, T};
  if (foveal_packed_qkv(qkv, inp, FOVEAL_F32, B, T, C, NH) != FOVEAL_OK ||
      foveal_contiguous(out, out_data, FOVEAL_F32, 4, tokens) != FOVEAL_OK ||
      foveal_contiguous(lse, lse_data, FOVEAL_F32, 3, rows) != FOVEAL_OK) {
    fprintf(stderr, "%s\n", foveal_last_error());
    exit(EXIT_FAILURE);
  }
}

static void foveal_forward(float* out, float* lse, float* inp, int B, int T, int C, int NH) {
  foveal_tensor qkv[3], tout, tlse;
  foveal_views(qkv, inp, &tout, out, &tlse, lse, B, T, C, NH);
  foveal_call call = FOVEAL_INIT(foveal_call);
  call.q = &qkv[0], call.k = &qkv[1], call.v = &qkv[2], call.out = &tout, call.lse = &tlse;
  foveal_attend(&call);
}

/* att has room for lse and out: only very short sequences give less. */
static int foveal_att_has_room(int T, int C, int NH) { return T >= C / NH + 1; }

void attention_forward(float* out, float* preatt, float* att, float* inp, int B, int T, int C, int NH) {
  (void)preatt;
  const size_t rows = (size_t)B * NH * T;
  if (!foveal_att_has_room(T, C, NH)) {
    float* lse = malloc(rows * sizeof(float));
    foveal_forward(out, lse, inp, B, T, C, NH);
    free(lse);
    return;
  }
  foveal_forward(out, att, inp, B, T, C, NH);
  memcpy(att + rows, out, (size_t)B * T * C * sizeof(float));
}

void attention_backward(float* dinp, float* dpreatt, float* datt, float* dout, float* inp, float* att, int B, int T, int C, int NH) {
  (void)dpreatt, (void)datt;
  const size_t rows = (size_t)B * NH * T;
  float* again = NULL;
  if (!foveal_att_has_room(T, C, NH)) {
    att = again = malloc((rows + (size_t)B * T * C) * sizeof(float));
    foveal_forward(att + rows, att, inp, B, T, C, NH);
  }
  foveal_tensor qkv[3], dqkv[3], out, lse, tdout;
  foveal_views(qkv, inp, &out, att + rows, &lse, att, B, T, C, NH);
  foveal_views(dqkv, dinp, &tdout, dout, &lse, att, B, T, C, NH);
  foveal_call call = FOVEAL_INIT(foveal_call);
  call.pass = FOVEAL_BACKWARD;
  call.q = &qkv[0], call.k = &qkv[1], call.v = &qkv[2], call.out = &out, call.lse = &lse, call.dout = &tdout;
  call.dq = &dqkv[0], call.dk = &dqkv[1], call.dv = &dqkv[2];
  foveal_attend(&call);
  free(again);
}
