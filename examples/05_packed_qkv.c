/* A drop-in for C programs with a fused QKV projection, (B, T, 3C): causal attention forward and backward with accumulated gradients, checked
 * against unfused attention. */
#include <foveal/foveal_c.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int run(foveal_call* call) {
  foveal_attention attention = FOVEAL_INIT(foveal_attention);
  attention.mask = "causal()";
  attention.accumulate = call->pass == FOVEAL_BACKWARD;
  const int code = foveal_run(&attention, call, NULL, NULL);
  if (code != FOVEAL_OK) fprintf(stderr, "%s\n", foveal_last_error());
  return code;
}

/* out (B, T, C) and lse (B, NH, T) from qkv (B, T, 3C). */
static int attention_forward(float* out, float* lse, float* qkv, int64_t B, int64_t T, int64_t C, int64_t NH) {
  foveal_tensor in[3], tout, tlse;
  const int64_t tokens[] = {B, T, NH, C / NH}, rows[] = {B, NH, T};
  int code = foveal_packed_qkv(in, qkv, FOVEAL_F32, B, T, C, NH);
  if (code == FOVEAL_OK) code = foveal_contiguous(&tout, out, FOVEAL_F32, 4, tokens);
  if (code == FOVEAL_OK) code = foveal_contiguous(&tlse, lse, FOVEAL_F32, 3, rows);
  if (code != FOVEAL_OK) return code;
  foveal_call call = FOVEAL_INIT(foveal_call);
  call.q = &in[0], call.k = &in[1], call.v = &in[2], call.out = &tout, call.lse = &tlse;
  return run(&call);
}

/* dqkv (B, T, 3C) += the gradient of sum(out * dout). */
static int attention_backward(float* dqkv, float* dout, float* qkv, float* out, float* lse, int64_t B, int64_t T, int64_t C, int64_t NH) {
  foveal_tensor in[3], din[3], tout, tdout, tlse;
  const int64_t tokens[] = {B, T, NH, C / NH}, rows[] = {B, NH, T};
  int code = foveal_packed_qkv(in, qkv, FOVEAL_F32, B, T, C, NH);
  if (code == FOVEAL_OK) code = foveal_packed_qkv(din, dqkv, FOVEAL_F32, B, T, C, NH);
  if (code == FOVEAL_OK) code = foveal_contiguous(&tout, out, FOVEAL_F32, 4, tokens);
  if (code == FOVEAL_OK) code = foveal_contiguous(&tdout, dout, FOVEAL_F32, 4, tokens);
  if (code == FOVEAL_OK) code = foveal_contiguous(&tlse, lse, FOVEAL_F32, 3, rows);
  if (code != FOVEAL_OK) return code;
  foveal_call call = FOVEAL_INIT(foveal_call);
  call.pass = FOVEAL_BACKWARD;
  call.q = &in[0], call.k = &in[1], call.v = &in[2], call.out = &tout, call.lse = &tlse, call.dout = &tdout;
  call.dq = &din[0], call.dk = &din[1], call.dv = &din[2];
  return run(&call);
}

/* Unfused attention of one head in double precision: writes out, adds to dqkv. */
static void unfused(double* out, double* dqkv, const float* qkv, const float* dout, int64_t T, int64_t C, int64_t hs, int64_t head) {
  double* p = malloc((size_t)T * sizeof *p);
  for (int64_t t = 0; t < T; ++t) {
    const float* q = qkv + t * 3 * C + head * hs;
    double sum = 0, mean = 0;
    for (int64_t s = 0; s <= t; ++s) {
      const float* k = qkv + s * 3 * C + C + head * hs;
      double dot = 0;
      for (int64_t i = 0; i < hs; ++i) dot += (double)q[i] * k[i];
      sum += p[s] = exp(dot / sqrt((double)hs));
    }
    for (int64_t i = 0; i < hs; ++i) out[t * C + head * hs + i] = 0;
    for (int64_t s = 0; s <= t; ++s) {
      p[s] /= sum;
      for (int64_t i = 0; i < hs; ++i) out[t * C + head * hs + i] += p[s] * qkv[s * 3 * C + 2 * C + head * hs + i];
    }
    const float* d = dout + t * C + head * hs;
    for (int64_t i = 0; i < hs; ++i) mean += d[i] * out[t * C + head * hs + i];
    for (int64_t s = 0; s <= t; ++s) {
      const float *k = qkv + s * 3 * C + C + head * hs, *v = k + C;
      double dp = 0;
      for (int64_t i = 0; i < hs; ++i) dp += (double)d[i] * v[i];
      const double ds = p[s] * (dp - mean) / sqrt((double)hs);
      for (int64_t i = 0; i < hs; ++i) {
        dqkv[t * 3 * C + head * hs + i] += ds * k[i];
        dqkv[s * 3 * C + C + head * hs + i] += ds * q[i];
        dqkv[s * 3 * C + 2 * C + head * hs + i] += p[s] * d[i];
      }
    }
  }
  free(p);
}

static double difference(const float* found, const double* expected, size_t count) {
  double most = 0;
  for (size_t i = 0; i < count; ++i) {
    const double apart = fabs(found[i] - expected[i]);
    if (!(apart <= most)) most = apart;  // NaN, too
  }
  return most;
}

int main(void) {
  enum { B = 2, T = 70, NH = 3, C = 96, tokens = B * T * C };
  static float qkv[3 * tokens], out[tokens], lse[B * NH * T], dout[tokens], dqkv[3 * tokens];
  static double expected_out[tokens], expected_dqkv[3 * tokens];
  for (int i = 0; i < 3 * tokens; ++i) qkv[i] = sinf(1.0f + 3.7f * (float)i), expected_dqkv[i] = dqkv[i] = 0.25f;
  for (int i = 0; i < tokens; ++i) dout[i] = cosf(2.3f * (float)i);

  if (attention_forward(out, lse, qkv, B, T, C, NH) != FOVEAL_OK) return 1;
  if (attention_backward(dqkv, dout, qkv, out, lse, B, T, C, NH) != FOVEAL_OK) return 1;

  for (int b = 0; b < B; ++b)
    for (int head = 0; head < NH; ++head)
      unfused(expected_out + b * T * C, expected_dqkv + b * T * 3 * C, qkv + b * T * 3 * C, dout + b * T * C, T, C, C / NH, head);
  const double forward = difference(out, expected_out, tokens), backward = difference(dqkv, expected_dqkv, 3 * tokens);
  printf("difference from unfused attention: forward %.1e, backward %.1e\n", forward, backward);
  return forward < 2e-6 && backward < 1e-5 ? 0 : 1;
}
