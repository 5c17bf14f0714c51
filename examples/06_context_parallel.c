/* Context parallelism over MPI: each process computes causal attention with a trained slope per head for its own tokens of one sequence,
 * forward and backward, and compares with the result of a single process. Run it with `mpirun -n 2 example_06_context_parallel`, or alone. */
#include <foveal/foveal_c.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { heads = 2, seqlen = 300, dim = 16, row = heads * dim };

static float q[seqlen * row], k[seqlen * row], v[seqlen * row], dout[seqlen * row], slope[heads] = {0.1f, 0.02f};

static void check(int code) {
  if (code == FOVEAL_OK) return;
  fprintf(stderr, "%s\n", foveal_last_error());
  exit(1);
}

/* Tensors of one call: of the whole, or of a rank's rows. */
typedef struct tensors {
  float *q, *k, *v, *out, *lse, *dout, *dq, *dk, *dv, dslope[heads];
  foveal_tensor views[11];
  foveal_param param;
  foveal_call call;
} tensors;

static float* rows_of(const float* whole, const int64_t* tokens, int64_t count) {
  float* rows = malloc((size_t)count * row * sizeof(float));
  for (int64_t i = 0; i < count; ++i) memcpy(rows + i * row, whole + tokens[i] * row, row * sizeof(float));
  return rows;
}

static void fill(tensors* t, const int64_t* tokens, int64_t count) {
  const int64_t sizes[] = {1, count, heads, dim}, statistics[] = {1, heads, count}, slopes[] = {heads};
  t->q = rows_of(q, tokens, count), t->k = rows_of(k, tokens, count), t->v = rows_of(v, tokens, count);
  t->dout = rows_of(dout, tokens, count);
  float** results[] = {&t->out, &t->dq, &t->dk, &t->dv};
  for (int i = 0; i < 4; ++i) *results[i] = calloc((size_t)count * row, sizeof(float));
  t->lse = calloc((size_t)count * heads, sizeof(float));
  float* of_rows[] = {t->q, t->k, t->v, t->out, t->dout, t->dq, t->dk, t->dv};
  for (int i = 0; i < 8; ++i) check(foveal_contiguous(&t->views[i], of_rows[i], FOVEAL_F32, 4, sizes));
  check(foveal_contiguous(&t->views[8], t->lse, FOVEAL_F32, 3, statistics));
  check(foveal_contiguous(&t->views[9], slope, FOVEAL_F32, 1, slopes));
  check(foveal_contiguous(&t->views[10], t->dslope, FOVEAL_F32, 1, slopes));
  t->param = (foveal_param){.declaration = "slope: real[2]", .tensor = &t->views[9], .gradient = &t->views[10]};
  t->call = FOVEAL_INIT(foveal_call);
  t->call.params = &t->param, t->call.param_count = 1;
  t->call.q = &t->views[0], t->call.k = &t->views[1], t->call.v = &t->views[2], t->call.out = &t->views[3], t->call.lse = &t->views[8];
}

/* From the forward call to the backward one, which reads out and lse. */
static void turn_backward(tensors* t) {
  t->call.pass = FOVEAL_BACKWARD;
  t->call.dout = &t->views[4], t->call.dq = &t->views[5], t->call.dk = &t->views[6], t->call.dv = &t->views[7];
}

int main(void) {
  for (int i = 0; i < seqlen * row; ++i) {
    q[i] = sinf(1.1f * (float)i), k[i] = cosf(2.3f * (float)i), v[i] = sinf(0.7f * (float)i + 1), dout[i] = cosf(0.3f * (float)i);
  }
  foveal_attention attention = FOVEAL_INIT(foveal_attention);
  attention.mask = "causal()";
  attention.score_mod = "score - slope[head] * to_real(q_idx - kv_idx)";

  int64_t all[seqlen];
  for (int i = 0; i < seqlen; ++i) all[i] = i;
  tensors whole;
  fill(&whole, all, seqlen);
  check(foveal_run(&attention, &whole.call, NULL, NULL));
  turn_backward(&whole);
  check(foveal_run(&attention, &whole.call, NULL, NULL));

  foveal_ranks* ranks;
  foveal_network alone = FOVEAL_INIT(foveal_network); /* one rank talks to nobody */
  alone.size = 1;
  check(getenv("OMPI_COMM_WORLD_SIZE") ? foveal_ranks_mpi_world(60, &ranks) : foveal_ranks_of(&alone, &ranks));
  foveal_context_options options = FOVEAL_INIT(foveal_context_options);
  options.unit = 16;
  foveal_context* context;
  check(foveal_context_create(ranks, &attention, &whole.call, &options, &context));

  int64_t tokens[seqlen];
  const int64_t count = foveal_context_tokens(context, -1, 0, tokens); /* self attention: the same of q and of k and v */
  tensors mine;
  fill(&mine, tokens, count);
  check(foveal_context_run(context, &mine.call, NULL));
  turn_backward(&mine);
  check(foveal_context_run(context, &mine.call, NULL));

  double most = 0;
  const float* found[] = {mine.out, mine.dq, mine.dk, mine.dv};
  const float* expected[] = {whole.out, whole.dq, whole.dk, whole.dv};
  for (int t = 0; t < 4; ++t)
    for (int64_t i = 0; i < count * row; ++i) most = fmax(most, fabs((double)found[t][i] - expected[t][tokens[i / row] * row + i % row]));
  for (int h = 0; h < heads; ++h) most = fmax(most, fabs((double)mine.dslope[h] - whole.dslope[h]) * 0.01);
  printf("rank %d of %d: %lld of %d tokens, difference from one process %.1e\n", foveal_ranks_rank(ranks), foveal_ranks_size(ranks),
         (long long)count, seqlen, most);
  if (foveal_ranks_rank(ranks) == 0) {
    char text[4096];
    foveal_context_explain(context, text, sizeof text);
    printf("%s", text);
  }
  foveal_context_destroy(context);
  foveal_ranks_destroy(ranks);
  return most < 1e-4 ? 0 : 1;
}
