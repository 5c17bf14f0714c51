/* Context parallelism through the C interface: two ranks that are threads, over a network written here, give what one gives; what is refused,
 * on both ranks where one is wrong; a network that fails. */
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
