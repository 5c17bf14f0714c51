/* The library as a plug-in that a program opens and closes: it stays loaded, as its idle threads and what it keeps for each thread need it;
 * and two copies of it in one process, each with its own state. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <foveal/foveal_c.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), exit(1); \
    }                                                                          \
  } while (0)

enum { seqlen = 40, heads = 2, dim = 16, count = seqlen * heads * dim };

typedef int32_t run_function(const foveal_attention*, const foveal_call*, const foveal_options*, void*);
typedef const char* error_function(void);
typedef int32_t threads_function(int32_t);

struct library {
  void* handle;
  run_function* run;
  error_function* error;
  threads_function* set_threads;
};

static void find(void* handle, const char* name, void* function) {
  void* const address = dlsym(handle, name);
  CHECK(address != NULL);
  memcpy(function, &address, sizeof address);
}

static struct library open_library(const char* path) {
  struct library made;
  made.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (made.handle == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(made.handle != NULL);
  find(made.handle, "foveal_run", &made.run);
  find(made.handle, "foveal_last_error", &made.error);
  find(made.handle, "foveal_set_num_threads", &made.set_threads);
  return made;
}

static int32_t run(const struct library* library, const char* score, float* out) {
  float inputs[count];
  for (int i = 0; i < count; ++i) inputs[i] = 0.1f * (float)(i % 17);
  const foveal_tensor in = {
      .data = inputs, .dtype = FOVEAL_F32, .rank = 4, .sizes = {1, seqlen, heads, dim}, .strides = {count, heads * dim, dim, 1}};
  foveal_tensor result = in;
  result.data = out;
  foveal_attention attention = FOVEAL_INIT(foveal_attention);
  attention.score_mod = score;
  foveal_call call = FOVEAL_INIT(foveal_call);
  call.q = call.k = call.v = &in, call.out = &result;
  return library->run(&attention, &call, NULL, NULL);
}

static void* use(void* given) {
  const struct library* library = given;
  float out[count];
  CHECK(library->set_threads(2) == FOVEAL_OK);
  CHECK(run(library, "tanh(score)", out) == FOVEAL_OK);
  CHECK(run(library, "tanh(", out) == FOVEAL_INVALID_ARGUMENT);
  return NULL;
}

/* Only a thread that ends has used it: nothing of this one keeps it loaded. */
static void open_use_and_close(const char* path) {
  struct library library = open_library(path);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, use, &library) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  dlclose(library.handle);
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  for (int i = 0; i < 20; ++i) open_use_and_close(argv[1]);
  CHECK(dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) != NULL);

  const struct library first = open_library(argv[1]), second = open_library(argv[2]);
  CHECK(first.run != second.run);
  static float a[count], b[count];
  CHECK(run(&first, "tanh(score)", a) == FOVEAL_OK && run(&second, "tanh(score)", b) == FOVEAL_OK);
  CHECK(memcmp(a, b, sizeof a) == 0);
  CHECK(run(&first, "wrong(", a) != FOVEAL_OK);
  CHECK(strcmp(first.error(), second.error()) != 0);
  dlclose(first.handle);
  CHECK(run(&second, "score", b) == FOVEAL_OK);
  dlclose(second.handle);
  return 0;
}
