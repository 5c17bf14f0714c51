/* The C interface from C11: plan, run, explain, targets and errors, with results checked against a computation written here. */
#include <foveal/foveal_c.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;
#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                     \
    }                                                                 \
  } while (0)

enum { heads = 2, seqlen = 5, dim = 4, count = heads * seqlen * dim };

static foveal_tensor tensor(float* data, int rank, const int64_t* sizes) {
  foveal_tensor t = {.data = data, .dtype = FOVEAL_F32, .rank = rank};
  int64_t stride = 1;
  for (int d = rank - 1; d >= 0; --d) {
    t.sizes[d] = sizes[d];
    t.strides[d] = stride;
    stride *= sizes[d];
  }
  return t;
}

/* out and lse of causal attention with a bias per head, from the definition. */
static void expected(const float* q, const float* k, const float* v, const float* bias, double* out, double* lse) {
  for (int h = 0; h < heads; ++h)
    for (int i = 0; i < seqlen; ++i) {
      double weight[seqlen], sum = 0;
      for (int j = 0; j <= i; ++j) {
        double s = 0;
        for (int d = 0; d < dim; ++d) s += (double)q[(i * heads + h) * dim + d] * k[(j * heads + h) * dim + d];
        sum += weight[j] = exp(s / sqrt(dim) + bias[h] * (j - i));
      }
      lse[h * seqlen + i] = log(sum);
      for (int d = 0; d < dim; ++d) {
        double o = 0;
        for (int j = 0; j <= i; ++j) o += weight[j] / sum * v[(j * heads + h) * dim + d];
        out[(i * heads + h) * dim + d] = o;
      }
    }
}

/* sum(out * dout) after a forward pass by foveal_run(): what the gradient of the bias is checked against. */
static double objective(const foveal_attention* attention, const foveal_call* call, const float* out, const float* dout) {
  CHECK(foveal_run(attention, call, NULL, NULL) == FOVEAL_OK);
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += (double)out[i] * dout[i];
  return sum;
}

int main(void) {
  static float q[count], k[count], v[count], out[count], lse[heads * seqlen], dout[count], dq[count], dk[count], dv[count],
      bias[heads] = {0.5f, -0.25f}, dbias[heads];
  for (int i = 0; i < count; ++i) {
    q[i] = sinf(1.0f + 3 * i), k[i] = cosf(2.0f + 5 * i), v[i] = sinf(0.5f + 7 * i), dout[i] = cosf(11.0f * i);
  }
  const int64_t token_sizes[] = {1, seqlen, heads, dim}, lse_sizes[] = {1, heads, seqlen}, bias_sizes[] = {heads};
  const foveal_tensor tq = tensor(q, 4, token_sizes), tk = tensor(k, 4, token_sizes), tv = tensor(v, 4, token_sizes),
                      tout = tensor(out, 4, token_sizes), tlse = tensor(lse, 3, lse_sizes), tdout = tensor(dout, 4, token_sizes),
                      tdq = tensor(dq, 4, token_sizes), tdk = tensor(dk, 4, token_sizes), tdv = tensor(dv, 4, token_sizes),
                      tbias = tensor(bias, 1, bias_sizes), tdbias = tensor(dbias, 1, bias_sizes);
  const foveal_param param = {.declaration = "slope: real[2]", .tensor = &tbias}, trained = {"slope: real[2]", &tbias, &tdbias};

  foveal_attention attention = FOVEAL_INIT(foveal_attention);
  attention.mask = "causal()";
  attention.score_mod = "score + slope[head] * (kv_idx - q_idx)";
  foveal_call forward = FOVEAL_INIT(foveal_call);
  forward.pass = FOVEAL_FORWARD, forward.param_count = 1, forward.params = &param;
  forward.q = &tq, forward.k = &tk, forward.v = &tv, forward.out = &tout, forward.lse = &tlse;

  /* plan, explain, run */
  foveal_plan* plan = NULL;
  CHECK(foveal_plan_create(&attention, &forward, NULL, &plan) == FOVEAL_OK);
  CHECK(plan != NULL && strstr(foveal_plan_kernel(plan), "cpu.") == foveal_plan_kernel(plan));
  const size_t bytes = foveal_plan_workspace_bytes(plan);
  void* workspace = bytes == 0 ? NULL : aligned_alloc(256, (bytes + 255) / 256 * 256);
  CHECK(foveal_plan_run(plan, &forward, workspace, NULL) == FOVEAL_OK);
  double expected_out[count], expected_lse[heads * seqlen];
  expected(q, k, v, bias, expected_out, expected_lse);
  for (int i = 0; i < count; ++i) CHECK(fabs(out[i] - expected_out[i]) < 1e-5);
  for (int i = 0; i < heads * seqlen; ++i) CHECK(fabs(lse[i] - expected_lse[i]) < 1e-5);
  char small[16];
  const size_t length = foveal_plan_explain(plan, small, sizeof small);
  CHECK(length > sizeof small && strlen(small) == sizeof small - 1);
  char* text = malloc(length + 1);
  CHECK(foveal_plan_explain(plan, text, length + 1) == length && strstr(text, foveal_plan_kernel(plan)) != NULL);
  free(text);
  free(workspace);

  /* backward by the pool, the parameter's gradient against differences */
  foveal_call backward = forward;
  backward.pass = FOVEAL_BACKWARD, backward.params = &trained, backward.dout = &tdout;
  backward.dq = &tdq, backward.dk = &tdk, backward.dv = &tdv;
  CHECK(foveal_run(&attention, &backward, NULL, NULL) == FOVEAL_OK);
  for (int h = 0; h < heads; ++h) {
    const float kept = bias[h], step = 0.01f;
    bias[h] = kept + step;
    const double above = objective(&attention, &forward, out, dout);
    bias[h] = kept - step;
    const double below = objective(&attention, &forward, out, dout);
    bias[h] = kept;
    CHECK(fabs((above - below) / (2 * step) - dbias[h]) < 1e-3);
    CHECK(fabs(dbias[h]) > 1e-2);
  }

  /* errors */
  CHECK(foveal_plan_run(plan, &backward, NULL, NULL) == FOVEAL_INVALID_ARGUMENT);
  CHECK(strstr(foveal_last_error(), "the plan is for forward") != NULL);
  foveal_plan_destroy(plan);
  foveal_plan* none = NULL;
  attention.mask = "kv_idx <= ";
  CHECK(foveal_plan_create(&attention, &forward, NULL, &none) == FOVEAL_INVALID_ARGUMENT && none == NULL);
  CHECK(strstr(foveal_last_error(), "mask: line 1, column 11: ") == foveal_last_error() && strstr(foveal_last_error(), "^") != NULL);
  attention.mask = NULL, attention.score_mod = "score + bias";
  CHECK(foveal_plan_create(&attention, &forward, NULL, &none) == FOVEAL_INVALID_ARGUMENT);
  CHECK(strstr(foveal_last_error(), "score_mod: line 1, column 9: ") == foveal_last_error());
  attention.score_mod = "score + slope[head] * (kv_idx - q_idx)";
  forward.struct_size = 1000;
  CHECK(foveal_run(&attention, &forward, NULL, NULL) == FOVEAL_INVALID_ARGUMENT && strstr(foveal_last_error(), "struct_size 1000") != NULL);
  forward.struct_size = sizeof forward;

  /* a size is that of this version */
  attention.mask = "causal()";
  const size_t wrong_sizes[] = {0, 8, 9, 13, 16, 24, sizeof attention - 1, sizeof attention + 1, sizeof attention + 8, (size_t)-1};
  for (size_t i = 0; i < sizeof wrong_sizes / sizeof *wrong_sizes; ++i) {
    attention.struct_size = wrong_sizes[i];
    CHECK(foveal_run(&attention, &forward, NULL, NULL) == FOVEAL_INVALID_ARGUMENT &&
          strstr(foveal_last_error(), "attention: struct_size ") != NULL);
    foveal_options sized = {.struct_size = wrong_sizes[i]};
    attention.struct_size = sizeof attention;
    CHECK(foveal_run(&attention, &forward, &sized, NULL) == FOVEAL_INVALID_ARGUMENT &&
          strstr(foveal_last_error(), "options: struct_size ") != NULL);
  }
  attention.struct_size = sizeof attention, attention.mask = NULL;

  /* dropout: the numbers are the run's */
  foveal_attention dropping = attention;
  dropping.dropout_p = 0.5;
  float by_call[count];
  forward.dropout_seed = 5, forward.dropout_offset = 6;
  CHECK(foveal_plan_create(&dropping, &forward, NULL, &none) == FOVEAL_OK);
  const size_t drop_bytes = foveal_plan_workspace_bytes(none);
  void* drop_scratch = aligned_alloc(256, (drop_bytes + 511) / 256 * 256);
  CHECK(foveal_plan_run(none, &forward, drop_scratch, NULL) == FOVEAL_OK);
  memcpy(by_call, out, sizeof out);
  forward.dropout_seed = 7;
  CHECK(foveal_plan_run(none, &forward, drop_scratch, NULL) == FOVEAL_OK && memcmp(by_call, out, sizeof out) != 0);
  int64_t words[] = {5, 6};
  const foveal_tensor state = {.data = words, .dtype = FOVEAL_I64, .rank = 1, .sizes = {2}, .strides = {1}};
  forward.dropout_state = &state;
  CHECK(foveal_plan_run(none, &forward, drop_scratch, NULL) == FOVEAL_OK && memcmp(by_call, out, sizeof out) == 0);
  foveal_tensor wrong_state = state;
  wrong_state.dtype = FOVEAL_I32;
  forward.dropout_state = &wrong_state;
  CHECK(foveal_plan_run(none, &forward, drop_scratch, NULL) == FOVEAL_INVALID_ARGUMENT);
  CHECK(strstr(foveal_last_error(), "dropout_state: i32[2] with strides [1]; expected i64[2], contiguous") == foveal_last_error());
  foveal_plan_destroy(none), free(drop_scratch);
  forward.dropout_state = NULL;
  forward.dropout_seed = forward.dropout_offset = 0;

  /* keys and values in pages: a page of 16 rows, of which five are keys */
  float pool_k[2 * 16 * heads * dim], pool_v[2 * 16 * heads * dim], contiguous[count];
  for (int i = 0; i < 2 * 16 * heads * dim; ++i) pool_k[i] = pool_v[i] = NAN;
  memcpy(pool_k + 16 * heads * dim, k, sizeof k), memcpy(pool_v + 16 * heads * dim, v, sizeof v);
  CHECK(foveal_run(&attention, &forward, NULL, NULL) == FOVEAL_OK);
  memcpy(contiguous, out, sizeof out);
  const int64_t pool_sizes[] = {2, 16, heads, dim}, table_sizes[] = {1, 1}, one[] = {1};
  int32_t entries[] = {1}, lengths[] = {seqlen};
  const foveal_tensor paged_k = tensor(pool_k, 4, pool_sizes), paged_v = tensor(pool_v, 4, pool_sizes);
  foveal_tensor table, seqlens;
  foveal_contiguous(&table, entries, FOVEAL_I32, 2, table_sizes), foveal_contiguous(&seqlens, lengths, FOVEAL_I32, 1, one);
  foveal_call paged = forward;
  paged.k = &paged_k, paged.v = &paged_v, paged.block_table = &table, paged.seqlens_kv = &seqlens;
  memset(out, 0, sizeof out);
  CHECK(foveal_run(&attention, &paged, NULL, NULL) == FOVEAL_OK && memcmp(contiguous, out, sizeof out) == 0);
  entries[0] = 2;
  CHECK(foveal_run(&attention, &paged, NULL, NULL) == FOVEAL_INVALID_ARGUMENT &&
        strstr(foveal_last_error(), "block_table: page 2 at [0, 0]; expected 0 to 1") != NULL);

  foveal_tensor odd = tq;
  odd.dtype = 77;
  forward.q = &odd;
  CHECK(foveal_run(&attention, &forward, NULL, NULL) == FOVEAL_INVALID_ARGUMENT && strstr(foveal_last_error(), "dtype 77") != NULL);
  forward.q = &tq;
  foveal_options options = FOVEAL_INIT(foveal_options);
  options.backend = "abacus";
  CHECK(foveal_run(&attention, &forward, &options, NULL) == FOVEAL_INVALID_ARGUMENT);
  options.backend = "reference", options.threads = 1;
  CHECK(foveal_run(&attention, &forward, &options, NULL) == FOVEAL_OK);
  options.reserved = 7;
  CHECK(foveal_run(&attention, &forward, &options, NULL) == FOVEAL_INVALID_ARGUMENT &&
        strstr(foveal_last_error(), "options: reserved 7; expected 0") != NULL);
  forward.max_seqlen_kv = seqlen;
  CHECK(foveal_run(&attention, &forward, NULL, NULL) == FOVEAL_INVALID_ARGUMENT &&
        strstr(foveal_last_error(), "max_seqlen_kv: 0, 5 without cu_seqlens") != NULL);
  CHECK(foveal_plan_create(&attention, &forward, NULL, &none) == FOVEAL_INVALID_ARGUMENT);
  forward.max_seqlen_kv = 0;
  CHECK(foveal_run(NULL, &forward, NULL, NULL) == FOVEAL_INVALID_ARGUMENT && strcmp(foveal_last_error(), "attention: null") == 0);

  /* targets, threads, version */
  int reference = 0;
  for (size_t i = 0; i < foveal_target_count(); ++i) {
    foveal_target target;
    CHECK(foveal_target_get(i, &target) == FOVEAL_OK);
    if (strcmp(target.backend, "reference") == 0) reference = target.available;
  }
  CHECK(reference == 1);
  CHECK(foveal_target_get(foveal_target_count(), &(foveal_target){0}) == FOVEAL_INVALID_ARGUMENT);
  CHECK(foveal_set_num_threads(1) == FOVEAL_OK && foveal_num_threads() == 1);
  CHECK(foveal_set_num_threads(-1) == FOVEAL_INVALID_ARGUMENT);
  CHECK(strlen(foveal_version()) > 0);
  /* helpers */
  foveal_tensor filled, three[3];
  const int64_t sizes[] = {2, 3, 4}, negative[] = {2, -1};
  CHECK(foveal_contiguous(&filled, q, FOVEAL_F64, 3, sizes) == FOVEAL_OK && filled.strides[0] == 12 && filled.strides[2] == 1);
  CHECK(foveal_contiguous(&filled, q, 0, 3, sizes) == FOVEAL_INVALID_ARGUMENT && strstr(foveal_last_error(), "dtype is not set"));
  CHECK(foveal_contiguous(&filled, q, FOVEAL_F32, 7, sizes) == FOVEAL_INVALID_ARGUMENT && strstr(foveal_last_error(), "rank: 7"));
  CHECK(foveal_contiguous(&filled, q, FOVEAL_F32, 2, negative) == FOVEAL_INVALID_ARGUMENT);
  CHECK(foveal_packed_qkv(three, q, FOVEAL_BF16, 1, 2, 6, 2) == FOVEAL_OK && three[1].sizes[3] == 3 && three[1].strides[1] == 18 &&
        (char*)three[2].data - (char*)three[0].data == 24);
  CHECK(foveal_packed_qkv(three, q, FOVEAL_F32, 1, 2, 7, 2) == FOVEAL_INVALID_ARGUMENT &&
        strstr(foveal_last_error(), "channels: 7 with 2 heads"));
  CHECK(foveal_packed_qkv(three, q, FOVEAL_F32, 0, INT64_MAX / 8, 64, 2) == FOVEAL_INVALID_ARGUMENT &&
        strstr(foveal_last_error(), "more than 2^63 bytes"));

  /* a dtype that was forgotten, a device that is none, the current device where there is no GPU */
  foveal_tensor wrong = tq;
  foveal_call refused = forward;
  refused.q = &wrong;
  wrong.dtype = 0;
  CHECK(foveal_run(&attention, &refused, NULL, NULL) == FOVEAL_INVALID_ARGUMENT && strstr(foveal_last_error(), "q: dtype is not set"));
  wrong.dtype = FOVEAL_F32, wrong.device_kind = 2;
  CHECK(foveal_run(&attention, &refused, NULL, NULL) == FOVEAL_INVALID_ARGUMENT && strstr(foveal_last_error(), "q: device_kind 2"));
  wrong.device_kind = FOVEAL_CPU, wrong.device_index = -2;
  CHECK(foveal_run(&attention, &refused, NULL, NULL) == FOVEAL_INVALID_ARGUMENT && strstr(foveal_last_error(), "device_index -2"));
  wrong.device_index = -1;
  CHECK(foveal_run(&attention, &refused, NULL, NULL) == FOVEAL_OK);

  /* parameters that a call promises and does not have, in a plan's run as in planning; messages name a parameter and its gradient apart */
  foveal_plan* with_params = NULL;
  CHECK(foveal_plan_create(&attention, &backward, NULL, &with_params) == FOVEAL_OK);
  void* room = aligned_alloc(256, (foveal_plan_workspace_bytes(with_params) + 256) / 256 * 256);
  foveal_call without = backward;
  without.params = NULL;
  CHECK(foveal_plan_run(with_params, &without, room, NULL) == FOVEAL_INVALID_ARGUMENT && strstr(foveal_last_error(), "params is null"));
  foveal_param spoilt = trained;
  without.params = &spoilt, spoilt.tensor = NULL;
  CHECK(foveal_plan_run(with_params, &without, room, NULL) == FOVEAL_INVALID_ARGUMENT &&
        strstr(foveal_last_error(), "parameter 0 has no tensor"));
  foveal_tensor gradient = tdbias;
  spoilt = trained, spoilt.gradient = &gradient;
  gradient.dtype = 0;
  CHECK(foveal_plan_run(with_params, &without, room, NULL) == FOVEAL_INVALID_ARGUMENT &&
        strstr(foveal_last_error(), "gradient of slope: dtype is not set"));
  gradient = tbias;
  CHECK(foveal_plan_run(with_params, &without, room, NULL) == FOVEAL_INVALID_ARGUMENT &&
        strstr(foveal_last_error(), "gradient of slope: overlaps slope in memory"));
  free(room);
  foveal_plan_destroy(with_params);

  /* gradients added to what is there, by foveal_run() and by a plan; strided, and of a parameter */
  static float sum_q[2 * count], sum_v[count], sum_bias[heads];
  for (int i = 0; i < 2 * count; ++i) sum_q[i] = (float)i;
  for (int i = 0; i < count; ++i) sum_v[i] = 2;
  sum_bias[0] = 1, sum_bias[1] = -1;
  foveal_tensor added_q = tensor(sum_q, 4, token_sizes), added_v = tensor(sum_v, 4, token_sizes),
                added_bias = tensor(sum_bias, 1, bias_sizes);
  for (int d = 0; d < 4; ++d) added_q.strides[d] *= 2;
  const foveal_param summed = {"slope: real[2]", &tbias, &added_bias};
  foveal_call adding = backward;
  adding.params = &summed, adding.dq = &added_q, adding.dk = NULL, adding.dv = &added_v;
  foveal_call writing = backward;
  writing.params = &trained;
  CHECK(foveal_run(&attention, &writing, NULL, NULL) == FOVEAL_OK);
  foveal_attention accumulating = attention;
  accumulating.accumulate = 1;
  CHECK(foveal_run(&accumulating, &adding, NULL, NULL) == FOVEAL_OK);
  foveal_plan* adder = NULL;
  CHECK(foveal_plan_create(&accumulating, &adding, NULL, &adder) == FOVEAL_OK);
  void* scratch = aligned_alloc(256, (foveal_plan_workspace_bytes(adder) + 256) / 256 * 256);
  CHECK(foveal_plan_run(adder, &adding, scratch, NULL) == FOVEAL_OK);
  free(scratch);
  foveal_plan_destroy(adder);
  for (int i = 0; i < count; ++i) {
    CHECK(fabsf(sum_q[2 * i] - (2 * i + 2 * dq[i])) < 1e-4f && sum_q[2 * i + 1] == 2 * i + 1);
    CHECK(fabsf(sum_v[i] - (2 + 2 * dv[i])) < 1e-5f);
  }
  for (int h = 0; h < heads; ++h) CHECK(fabsf(sum_bias[h] - ((h == 0 ? 1 : -1) + 2 * dbias[h])) < 1e-4f);
  /* gradients that are added to have the same rules: aligned, each element and each tensor in a place of its own */
  foveal_tensor misplaced = added_v;
  adding.dv = &misplaced;
  misplaced.data = (char*)sum_v + 2;
  CHECK(foveal_run(&accumulating, &adding, NULL, NULL) == FOVEAL_INVALID_ARGUMENT &&
        strstr(foveal_last_error(), "dv: address is not a multiple of 4"));
  misplaced.data = sum_q;
  CHECK(foveal_run(&accumulating, &adding, NULL, NULL) == FOVEAL_INVALID_ARGUMENT && strstr(foveal_last_error(), "overlaps"));
  misplaced.data = NULL;
  CHECK(foveal_run(&accumulating, &adding, NULL, NULL) == FOVEAL_INVALID_ARGUMENT && strstr(foveal_last_error(), "no data"));
  misplaced.data = sum_v, misplaced.strides[1] = 0;
  CHECK(foveal_run(&accumulating, &adding, NULL, NULL) == FOVEAL_INVALID_ARGUMENT &&
        strstr(foveal_last_error(), "two elements in one place"));
  CHECK(foveal_plan_create(&accumulating, &adding, NULL, &adder) == FOVEAL_INVALID_ARGUMENT);
  adding.dv = &added_v;
  accumulating.accumulate = 2;
  CHECK(foveal_run(&accumulating, &adding, NULL, NULL) == FOVEAL_INVALID_ARGUMENT && strstr(foveal_last_error(), "accumulate 2"));

  /* what a pass would not use */
  foveal_call both = forward;
  both.dq = &tdq;
  CHECK(foveal_run(&attention, &both, NULL, NULL) == FOVEAL_INVALID_ARGUMENT &&
        strstr(foveal_last_error(), "dq: given for a forward pass"));
  both = forward, both.dlse = &tlse;
  CHECK(foveal_run(&attention, &both, NULL, NULL) == FOVEAL_INVALID_ARGUMENT &&
        strstr(foveal_last_error(), "dlse: given for a forward pass"));
  foveal_attention checking = attention;
  checking.checked = 2;
  CHECK(foveal_run(&checking, &forward, NULL, NULL) == FOVEAL_INVALID_ARGUMENT &&
        strstr(foveal_last_error(), "checked 2; expected 0 or 1"));

  if (failures == 0) puts("c_api: all checks hold");
  return failures != 0;
}
