/* attention_foveal.h with the calls that llm.c makes, against llm.c's formulas: softmax with a running sum, gradients added. Also where att
 * is too small to keep what the backward pass needs. */
#include <math.h>

#include "attention_foveal.h"

static int failures = 0;

static void unfused(double* out, double* dinp, const float* inp, const float* dout, int B, int T, int C, int NH) {
  const int hs = C / NH;
  double* p = malloc((size_t)T * sizeof *p);
  for (int b = 0; b < B; ++b)
    for (int h = 0; h < NH; ++h)
      for (int t = 0; t < T; ++t) {
        const float *row = inp + (size_t)b * T * 3 * C, *q = row + (size_t)t * 3 * C + h * hs, *d = dout + ((size_t)b * T + t) * C + h * hs;
        double *o = out + ((size_t)b * T + t) * C + h * hs, *g = dinp + (size_t)b * T * 3 * C, sum = 0, mean = 0;
        for (int s = 0; s <= t; ++s) {
          double dot = 0;
          for (int i = 0; i < hs; ++i) dot += (double)q[i] * row[(size_t)s * 3 * C + C + h * hs + i];
          sum += p[s] = exp(dot / sqrt(hs));
        }
        for (int i = 0; i < hs; ++i) {
          o[i] = 0;
          for (int s = 0; s <= t; ++s) o[i] += p[s] / sum * row[(size_t)s * 3 * C + 2 * C + h * hs + i];
          mean += d[i] * o[i];
        }
        for (int s = 0; s <= t; ++s) {
          double dp = 0;
          for (int i = 0; i < hs; ++i) dp += (double)d[i] * row[(size_t)s * 3 * C + 2 * C + h * hs + i];
          for (int i = 0; i < hs; ++i) {
            const double ds = p[s] / sum * (dp - mean) / sqrt(hs);
            g[(size_t)t * 3 * C + h * hs + i] += ds * row[(size_t)s * 3 * C + C + h * hs + i];
            g[(size_t)s * 3 * C + C + h * hs + i] += ds * q[i];
            g[(size_t)s * 3 * C + 2 * C + h * hs + i] += p[s] / sum * d[i];
          }
        }
      }
  free(p);
}

static void compare(const char* name, int T, const float* found, const double* expected, size_t count, double allowed) {
  for (size_t i = 0; i < count; ++i)
    if (!(fabs(found[i] - expected[i]) <= allowed)) {
      fprintf(stderr, "%s, T = %d: element %zu is %g, expected %g\n", name, T, i, found[i], expected[i]);
      ++failures;
      return;
    }
}

static void try_length(int T) {
  const int B = 2, NH = 2, C = 64;
  const size_t tokens = (size_t)B * T * C, square = (size_t)B * NH * T * T;
  float *inp = malloc(3 * tokens * sizeof(float)), *dinp = malloc(3 * tokens * sizeof(float)), *out = malloc(tokens * sizeof(float)),
        *dout = malloc(tokens * sizeof(float)), *att = malloc(square * sizeof(float)), *preatt = malloc(square * sizeof(float));
  double *expected = malloc(tokens * sizeof(double)), *gradient = malloc(3 * tokens * sizeof(double));
  for (size_t i = 0; i < 3 * tokens; ++i) inp[i] = sinf(0.9f * (float)i), gradient[i] = dinp[i] = -0.5f;
  for (size_t i = 0; i < tokens; ++i) dout[i] = cosf(1.7f * (float)i);
  attention_forward(out, preatt, att, inp, B, T, C, NH);
  for (size_t i = 0; i < tokens; ++i) expected[i] = 0;
  unfused(expected, gradient, inp, dout, B, T, C, NH);
  compare("out", T, out, expected, tokens, 2e-6);
  memset(out, 0, tokens * sizeof(float)); /* llm.c reuses activations; the backward pass is not given them */
  attention_backward(dinp, preatt, preatt, dout, inp, att, B, T, C, NH);
  compare("dinp", T, dinp, gradient, 3 * tokens, 2e-5);
  free(inp), free(dinp), free(out), free(dout), free(att), free(preatt), free(expected), free(gradient);
}

int main(void) {
  try_length(64);
  try_length(33); /* the least that att can keep */
  try_length(9);
  return failures;
}
