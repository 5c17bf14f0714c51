/* Context parallelism through the C interface: two ranks that are threads, over a network written here, give what one gives; what is refused,
 * on both ranks where one is wrong; a network that fails; on one rank, lengths, a dropout state and parameters of any content. */
#include <foveal/foveal_c.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;
#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, foveal_last_error()); \
      ++failures;                                                                               \
    }                                                                                           \
  } while (0)
#define REFUSED(call, text) CHECK((call) == FOVEAL_INVALID_ARGUMENT && strstr(foveal_last_error(), text) != NULL)

/* Boxes of messages, one for each direction. */
typedef struct box {
  void* data[256];
  size_t bytes[256], first, last;
} box;
typedef struct hub {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  box boxes[2]; /* to each rank */
} hub;
typedef struct endpoint {
  hub* hub;
  int rank, broken, failed;
  foveal_message waits[256];
  size_t begin[256], end[256], used;
  uint64_t last;
} endpoint;

static int start(void* user, const foveal_message* sends, size_t send_count, const foveal_message* receives, size_t receive_count,
                 uint64_t* ticket) {
  endpoint* e = user;
  if (e->broken) return 7;
  pthread_mutex_lock(&e->hub->mutex);
  for (size_t i = 0; i < send_count; ++i) {
    box* b = &e->hub->boxes[sends[i].peer];
    b->data[b->last % 256] = malloc(sends[i].bytes + 1), b->bytes[b->last % 256] = sends[i].bytes;
    if (sends[i].bytes > 0) memcpy(b->data[b->last % 256], sends[i].data, sends[i].bytes);
    ++b->last;
  }
  pthread_cond_broadcast(&e->hub->changed);
  pthread_mutex_unlock(&e->hub->mutex);
  *ticket = e->last++;
  if (*ticket == 0 || e->used + receive_count > 256) e->used = 0;
  e->begin[*ticket % 256] = e->used;
  for (size_t i = 0; i < receive_count; ++i) e->waits[e->used++] = receives[i];
  e->end[*ticket % 256] = e->used;
  return 0;
}

static int wait_for(void* user, uint64_t ticket) {
  endpoint* e = user;
  box* b = &e->hub->boxes[e->rank];
  pthread_mutex_lock(&e->hub->mutex);
  int code = 0;
  for (size_t i = e->begin[ticket % 256]; i < e->end[ticket % 256]; ++i) {
    while (b->first == b->last) pthread_cond_wait(&e->hub->changed, &e->hub->mutex);
    if (b->bytes[b->first % 256] != e->waits[i].bytes) code = 9;
    if (code == 0 && e->waits[i].bytes > 0) memcpy(e->waits[i].data, b->data[b->first % 256], e->waits[i].bytes);
    free(b->data[b->first++ % 256]);
  }
  pthread_mutex_unlock(&e->hub->mutex);
  return code;
}

static void fail(void* user, const char* why) {
  if (strlen(why) > 0) ((endpoint*)user)->failed = 1;
}

enum { heads = 2, seqlen = 50, dim = 8, row = heads * dim };
static float q[seqlen * row], k[seqlen * row], v[seqlen * row], expected[seqlen * row];

static foveal_tensor tensor(float* data, int64_t rows) {
  const int64_t sizes[] = {1, rows, heads, dim};
  foveal_tensor t;
  CHECK(foveal_contiguous(&t, data, FOVEAL_F32, 4, sizes) == FOVEAL_OK);
  return t;
}

static void* rank_of(void* given) {
  endpoint* e = given;
  foveal_network network = FOVEAL_INIT(foveal_network);
  network.user = e, network.rank = e->rank, network.size = 2;
  foveal_ranks* ranks = NULL;
  REFUSED(foveal_ranks_of(&network, &ranks), "network: start or wait is null");
  network.start = start, network.wait = wait_for, network.fail = fail;
  network.rank = 2;
  REFUSED(foveal_ranks_of(&network, &ranks), "network: rank 2 of 2");
  network.rank = e->rank;
  CHECK(foveal_ranks_of(&network, &ranks) == FOVEAL_OK && foveal_ranks_rank(ranks) == e->rank && foveal_ranks_size(ranks) == 2);

  foveal_attention attention = FOVEAL_INIT(foveal_attention);
  attention.mask = "causal()";
  foveal_context_options options = FOVEAL_INIT(foveal_context_options);
  options.unit = 8;
  foveal_tensor wq = tensor(q, seqlen), wk = tensor(k, seqlen), wv = tensor(v, seqlen), wout = tensor(NULL, seqlen);
  foveal_call whole = FOVEAL_INIT(foveal_call);
  whole.q = &wq, whole.k = &wk, whole.v = &wv, whole.out = &wout;
  foveal_context* context = NULL;
  /* One rank is wrong: both are told. */
  if (e->rank == 1) attention.mask = "caudal()";
  REFUSED(foveal_context_create(ranks, &attention, &whole, &options, &context), "caudal");
  attention.mask = e->rank == 1 ? "window(3)" : "causal()";
  REFUSED(foveal_context_create(ranks, &attention, &whole, &options, &context), "ranks 0 and 1 differ in description");
  attention.mask = "causal()";
  options.struct_size = e->rank == 0 ? 12 : sizeof options;
  REFUSED(foveal_context_create(ranks, &attention, &whole, &options, &context), "struct_size 12");
  options.struct_size = sizeof options;
  if (e->rank == 0) whole.v = NULL;
  REFUSED(foveal_context_create(ranks, &attention, &whole, &options, &context), "v: null");
  whole.v = &wv;
  int32_t cut[] = {0, 20, 49};
  foveal_tensor cu = {.data = cut, .dtype = FOVEAL_I32, .rank = 1, .sizes = {3}, .strides = {1}}, packed[3];
  const int64_t sizes[] = {seqlen, heads, dim};
  for (int i = 0; i < 3; ++i) CHECK(foveal_contiguous(&packed[i], NULL, FOVEAL_F32, 3, sizes) == FOVEAL_OK);
  foveal_call lengths = FOVEAL_INIT(foveal_call);
  lengths.q = &packed[0], lengths.k = &packed[1], lengths.v = &packed[2], lengths.cu_seqlens_q = lengths.cu_seqlens_kv = &cu;
  REFUSED(foveal_context_create(ranks, &attention, &lengths, &options, &context), "cu_seqlens_q: ends with 49; expected the 50 tokens");
  cut[2] = 50;
  CHECK(foveal_context_create(ranks, &attention, &lengths, &options, &context) == FOVEAL_OK);
  foveal_context_destroy(context);
  CHECK(foveal_context_create(ranks, &attention, &whole, &options, &context) == FOVEAL_OK);

  REFUSED(foveal_context_tokens(context, 2, 0, NULL) == -1 ? FOVEAL_INVALID_ARGUMENT : FOVEAL_OK, "rank: 2; expected 0 to 1");
  REFUSED(foveal_context_tokens(context, 0, 2, NULL) == -1 ? FOVEAL_INVALID_ARGUMENT : FOVEAL_OK, "of_keys: 2; expected 0 or 1");
  int64_t tokens[seqlen];
  const int64_t rows = foveal_context_tokens(context, -1, 0, tokens);
  CHECK(rows + foveal_context_tokens(context, 1 - e->rank, 1, NULL) == seqlen);
  const char* const nobody[] = {"bias"};
  REFUSED(foveal_context_backward_follows(NULL, NULL, 0, 0), "context: null");
  REFUSED(foveal_context_backward_follows(context, NULL, 1, 0), "trained: null with a count of 1");
  REFUSED(foveal_context_backward_follows(context, nobody, 1, 0), "trained: 'bias'; expected a parameter of the context");
  REFUSED(foveal_context_backward_follows(context, NULL, 0, 2), "dlse: 2; expected 0 or 1");
  CHECK(foveal_context_backward_follows(context, NULL, 0, 1) == FOVEAL_OK);
  char text[64];
  CHECK(foveal_context_explain(context, text, sizeof text) > 200 && strncmp(text, "context plan for 2 ranks: ", 26) == 0);

  float* shard[4];
  float* of[] = {q, k, v, NULL};
  foveal_tensor views[4];
  for (int i = 0; i < 4; ++i) {
    shard[i] = calloc((size_t)rows * row, sizeof(float));
    for (int64_t r = 0; r < rows && of[i] != NULL; ++r) memcpy(shard[i] + r * row, of[i] + tokens[r] * row, row * sizeof(float));
    views[i] = tensor(shard[i], rows);
  }
  foveal_call mine = FOVEAL_INIT(foveal_call);
  mine.q = &views[0], mine.k = e->rank == 0 ? &wk : &views[1], mine.v = &views[2], mine.out = &views[3];
  REFUSED(foveal_context_run(context, &mine, NULL), "k: f32[1, 50, 2, 8]; rank 0 of 2 holds");
  mine.k = &views[1];
  if (e->rank == 1) mine.param_count = 1;
  REFUSED(foveal_context_run(context, &mine, NULL), "call: 1 parameters; the plan has 0");
  mine.param_count = 0;
  CHECK(foveal_context_run(context, &mine, NULL) == FOVEAL_OK);
  for (int64_t i = 0; i < rows * row; ++i) CHECK(fabsf(shard[3][i] - expected[tokens[i / row] * row + i % row]) < 1e-5f);

  CHECK(e->failed == 0);
  e->broken = 1;
  CHECK(foveal_context_run(context, &mine, NULL) == FOVEAL_COMMUNICATION &&
        strstr(foveal_last_error(), "network: start returned 7") != NULL && e->failed == 1);
  for (int i = 0; i < 4; ++i) free(shard[i]);
  foveal_ranks_destroy(ranks); /* the context lives on */
  foveal_context_destroy(context);
  return NULL;
}

/* A context of one rank that no message leaves. */
static int create(const foveal_ranks* ranks, const foveal_attention* attention, const foveal_call* whole, foveal_context** context) {
  foveal_context_options options = FOVEAL_INIT(foveal_context_options);
  options.unit = 8;
  return foveal_context_create(ranks, attention, whole, &options, context);
}

/* Lengths of packed sequences of any content are read as integers, inside their tensor, and end at the tokens. */
static void lengths_are_checked(const foveal_ranks* ranks) {
  const foveal_attention attention = FOVEAL_INIT(foveal_attention);
  foveal_tensor packed = {.data = NULL, .dtype = FOVEAL_F32, .rank = 3, .sizes = {seqlen, heads, dim}, .strides = {row, dim, 1}};
  foveal_tensor of = {.dtype = FOVEAL_I64, .rank = 1, .sizes = {3}, .strides = {1}};
  foveal_call whole = FOVEAL_INIT(foveal_call);
  whole.q = whole.k = whole.v = whole.out = &packed, whole.cu_seqlens_q = whole.cu_seqlens_kv = &of;
  foveal_context* context = NULL;
  /* Doubles round the last length to that of another tensor. */
  int64_t beyond_doubles[] = {0, 1, ((int64_t)1 << 53) + 1};
  of.data = beyond_doubles;
  REFUSED(create(ranks, &attention, &whole, &context), "cu_seqlens_q: ends with 9007199254740993; expected the 50 tokens");
  /* Sums of lengths leave 64 bits. */
  int64_t opposite[] = {0, INT64_MIN, seqlen};
  of.data = opposite;
  REFUSED(create(ranks, &attention, &whole, &context), "cu_seqlens_q: -9223372036854775808 after 0; expected cumulative lengths");
  int64_t descending[] = {0, INT64_MAX, seqlen};
  of.data = descending;
  REFUSED(create(ranks, &attention, &whole, &context), "cu_seqlens_q: 50 after 9223372036854775807; expected cumulative lengths");
  /* A stride of 0 would promise any number of sequences, and a large one leaves 64 bits. */
  int64_t nothing[] = {0};
  of.data = nothing, of.sizes[0] = (int64_t)1 << 40, of.strides[0] = 0, packed.sizes[0] = 0;
  REFUSED(create(ranks, &attention, &whole, &context), "cu_seqlens_q: no tokens; expected at least 1");
  packed.sizes[0] = seqlen;
  REFUSED(create(ranks, &attention, &whole, &context), "cu_seqlens_q: ends with 0; expected the 50 tokens");
  of.strides[0] = (int64_t)1 << 60;
  REFUSED(create(ranks, &attention, &whole, &context), "cu_seqlens_q: ");
  /* What is right, read from its end. */
  int64_t backwards[] = {seqlen, 20, 0};
  of.data = backwards + 2, of.sizes[0] = 3, of.strides[0] = -1;
  CHECK(create(ranks, &attention, &whole, &context) == FOVEAL_OK);
  foveal_context_destroy(context);
}

/* The dropout state and the parameters of a pass are read only where they are what they should be. */
static void state_and_parameters_are_checked(const foveal_ranks* ranks) {
  static float out[seqlen * row];
  foveal_tensor wq = tensor(q, seqlen), wk = tensor(k, seqlen), wv = tensor(v, seqlen), wout = tensor(out, seqlen);
  foveal_attention attention = FOVEAL_INIT(foveal_attention);
  attention.dropout_p = 0.25, attention.score_mod = "score + b[head]";
  float bias[heads] = {0};
  foveal_tensor tbias = {.data = bias, .dtype = FOVEAL_F32, .rank = 1, .sizes = {heads}, .strides = {1}};
  foveal_param param = {.declaration = "b: real[2]", .tensor = &tbias};
  foveal_call whole = FOVEAL_INIT(foveal_call);
  whole.q = &wq, whole.k = &wk, whole.v = &wv, whole.out = &wout, whole.params = &param, whole.param_count = 1;
  foveal_context* context = NULL;
  CHECK(create(ranks, &attention, &whole, &context) == FOVEAL_OK);

  int64_t* words = malloc(2 * sizeof(int64_t));
  words[0] = 7, words[1] = 9;
  foveal_tensor state = {.data = words, .dtype = FOVEAL_I64, .rank = 1, .sizes = {2}, .strides = {1}};
  whole.dropout_state = &state;
  CHECK(foveal_context_run(context, &whole, NULL) == FOVEAL_OK);
  state.strides[0] = -1;
  REFUSED(foveal_context_run(context, &whole, NULL), "expected i64[2], contiguous, in host memory");
  state.strides[0] = 1, state.rank = 2, state.sizes[0] = 1, state.sizes[1] = 2, state.strides[1] = 1;
  REFUSED(foveal_context_run(context, &whole, NULL), "expected i64[2], contiguous, in host memory");
  state.rank = 1, state.sizes[0] = 2, state.data = NULL;
  REFUSED(foveal_context_run(context, &whole, NULL), "expected i64[2], contiguous, in host memory");
  state.data = words;

  tbias.data = NULL;
  REFUSED(foveal_context_run(context, &whole, NULL), "parameter b: f32[2] without data; expected [2] as declared, with data");
  tbias.data = bias, tbias.sizes[0] = 3;
  REFUSED(foveal_context_run(context, &whole, NULL), "parameter b: f32[3]; expected [2] as declared, with data");
  tbias.sizes[0] = heads, tbias.strides[0] = INT64_MAX;
  REFUSED(foveal_context_run(context, &whole, NULL), "b: ");
  tbias.strides[0] = 1;
  /* The stride of a dimension of size 1 is never used. */
  wq.strides[0] = INT64_MAX, wout.strides[0] = INT64_MIN;
  CHECK(foveal_context_run(context, &whole, NULL) == FOVEAL_OK);
  foveal_context_destroy(context);
  free(words);
}

static int never(void* user, const foveal_message* sends, size_t send_count, const foveal_message* receives, size_t receive_count,
                 uint64_t* ticket) {
  (void)user, (void)sends, (void)send_count, (void)receives, (void)receive_count, (void)ticket;
  return 1;
}

static int never_waits(void* user, uint64_t ticket) {
  (void)user, (void)ticket;
  return 1;
}

/* What only a run would need is looked at when a context is made. */
static void what_a_context_is_made_of_is_checked(const foveal_ranks* ranks) {
  foveal_tensor wq = tensor(q, seqlen), wk = tensor(k, seqlen), wv = tensor(v, seqlen);
  foveal_attention attention = FOVEAL_INIT(foveal_attention);
  foveal_call whole = FOVEAL_INIT(foveal_call);
  whole.q = &wq, whole.k = &wk, whole.v = &wv;
  foveal_options compute = FOVEAL_INIT(foveal_options);
  foveal_context_options options = FOVEAL_INIT(foveal_context_options);
  options.compute = &compute;
  foveal_context* context = NULL;
  compute.threads = -3;
  REFUSED(foveal_context_create(ranks, &attention, &whole, &options, &context), "options.threads: -3; expected 0 (all)");
  compute.threads = 0, compute.target = "nothing";
  REFUSED(foveal_context_create(ranks, &attention, &whole, &options, &context), "options.target: there is no 'nothing'");
  whole.pass = 4, compute.target = NULL;
  REFUSED(foveal_context_create(ranks, &attention, &whole, &options, &context), "call: pass: 4; expected 0 to 1");

  foveal_network network = FOVEAL_INIT(foveal_network);
  foveal_ranks* many = NULL;
  network.size = INT32_MAX, network.start = never, network.wait = never_waits;
  REFUSED(foveal_ranks_of(&network, &many), "network: rank 0 of 2147483647; expected a rank below a size of 1 to 4096");
}

int main(void) {
  for (int i = 0; i < seqlen * row; ++i) q[i] = sinf(1.3f * (float)i), k[i] = cosf(0.7f * (float)i), v[i] = sinf(0.2f * (float)i);
  foveal_attention attention = FOVEAL_INIT(foveal_attention);
  attention.mask = "causal()";
  foveal_tensor tq = tensor(q, seqlen), tk = tensor(k, seqlen), tv = tensor(v, seqlen), tout = tensor(expected, seqlen);
  foveal_call call = FOVEAL_INIT(foveal_call);
  call.q = &tq, call.k = &tk, call.v = &tv, call.out = &tout;
  CHECK(foveal_run(&attention, &call, NULL, NULL) == FOVEAL_OK);

  foveal_context* context = NULL;
  REFUSED(foveal_context_create(NULL, &attention, &call, NULL, &context), "ranks: null");
  REFUSED(foveal_ranks_of(NULL, NULL), "ranks: null");
  foveal_ranks* ranks = NULL;
  REFUSED(foveal_ranks_mpi_world(-1, &ranks), "time_limit: -1");
  REFUSED(foveal_context_run(NULL, &call, NULL), "context: null");
  CHECK(foveal_context_tokens(NULL, 0, 0, NULL) == -1 && foveal_context_explain(NULL, NULL, 0) == 0);
  CHECK(foveal_ranks_rank(NULL) == -1 && foveal_ranks_size(NULL) == 0);
  foveal_ranks_destroy(NULL);
  foveal_context_destroy(NULL);

  foveal_network alone = FOVEAL_INIT(foveal_network);
  alone.size = 1;
  CHECK(foveal_ranks_of(&alone, &ranks) == FOVEAL_OK);
  lengths_are_checked(ranks);
  state_and_parameters_are_checked(ranks);
  what_a_context_is_made_of_is_checked(ranks);
  foveal_ranks_destroy(ranks);

  static hub shared = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
  static endpoint ends[2];
  pthread_t threads[2];
  for (int rank = 0; rank < 2; ++rank) {
    ends[rank].hub = &shared, ends[rank].rank = rank;
    pthread_create(&threads[rank], NULL, rank_of, &ends[rank]);
  }
  for (int rank = 0; rank < 2; ++rank) pthread_join(threads[rank], NULL);
  for (int rank = 0; rank < 2; ++rank)
    for (box* b = &shared.boxes[rank]; b->first < b->last; ++b->first) free(b->data[b->first % 256]);
  return failures == 0 ? 0 : 1;
}
