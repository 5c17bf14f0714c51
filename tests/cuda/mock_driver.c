/* The driver's functions that an emitted program calls, writing down what they were asked: one line for each call. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef unsigned long long word;

static char log_text[1 << 20];
static size_t log_size;
static word next_table = 0x7000000000000000u;
static int argument_words[16]; /* of each kernel, told by the test */
static int modules;

const char* mock_log(void) { return log_text; }
void mock_clear_log(void) { log_text[log_size = 0] = '\0'; }
void mock_set_argument_words(int kernel, int words) { argument_words[kernel] = words; }
int mock_modules(void) { return modules; }

static void say(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  log_size += (size_t)vsnprintf(log_text + log_size, sizeof log_text - log_size, format, arguments);
  va_end(arguments);
}

static void say_launch(const char* how, void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared, void* stream,
                       void** parameters) {
  const int kernel = (int)(size_t)function - 1;
  const word* argument = parameters[0];
  say("%s %d grid %u %u %u threads %u shared %u stream %llx:", how, kernel, x, y, z, threads, shared, (word)stream);
  for (int i = 0; i < argument_words[kernel]; ++i) say(" %llx", argument[i]);
  say("\n");
}

static int device_attributes[80] = {0};
void mock_set_device(int major, int minor, int multiprocessors) {
  device_attributes[75] = major, device_attributes[76] = minor, device_attributes[16] = multiprocessors;
}
int cuCtxGetDevice(int* device) { return *device = 3, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (device != 3) return 101;
  *value = device_attributes[attribute];
  return 0;
}

int cuModuleLoadData(void** module, const void* image) {
  if (memcmp(image, "\177ELF", 4) != 0) return 200;
  *module = (void*)(size_t)++modules;
  return 0;
}
int cuModuleUnload(void* module) {
  (void)module;
  --modules;
  return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = module;
  say("function %d %s\n", (int)(size_t)module - 1, name);
  return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  say("attribute %d: %d = %d\n", (int)(size_t)function - 1, attribute, value);
  return 0;
}
int cuMemAlloc_v2(word* pointer, size_t bytes) {
  *pointer = next_table;
  next_table += (bytes + 255) / 256 * 256;
  return 0;
}
int cuMemFree_v2(word pointer) {
  (void)pointer;
  return 0;
}
int cuMemcpyHtoD_v2(word to, const void* from, size_t bytes) {
  word sum = 14695981039346656037u;
  for (size_t i = 0; i < bytes; ++i) sum = (sum ^ ((const unsigned char*)from)[i]) * 1099511628211u;
  say("table %llx: %zu bytes, %llx\n", to, bytes, sum);
  return 0;
}
int cuMemsetD8Async(word to, unsigned char value, size_t bytes, void* stream) {
  say("fill %llx: %u, %zu bytes, stream %llx\n", to, value, bytes, (word)stream);
  return 0;
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y, unsigned block_z,
                   unsigned shared, void* stream, void** parameters, void** extra) {
  if (block_y != 1 || block_z != 1 || extra != NULL) return 1;
  say_launch("launch", function, x, y, z, block_x, shared, stream, parameters);
  return 0;
}
int cuLaunchCooperativeKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared, void* stream, void** parameters) {
  if (block_y != 1 || block_z != 1) return 1;
  say_launch("launch together", function, x, y, z, block_x, shared, stream, parameters);
  return 0;
}
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const word* dims, const word* strides, const unsigned* box,
                           const unsigned* steps, int interleave, int swizzle, int promotion, int outside) {
  /* A map is written as what it was made of, so that it shows in the argument. */
  word* out = map;
  if ((size_t)map % 64 != 0 || rank < 4 || rank > 5) return 1;
  memset(map, 0, 128);
  out[0] = (word)address;
  for (unsigned d = 0; d < rank; ++d) {
    out[1 + d] = dims[d];
    out[10 + d / 4] |= (word)(box[d] * 16 + steps[d]) << d % 4 * 16;
  }
  for (unsigned d = 0; d + 1 < rank; ++d) out[6 + d] = strides[d];
  out[12] = (word)type, out[13] = (word)interleave, out[14] = (word)swizzle * 16 + (word)promotion, out[15] = (word)outside + 16 * rank;
  return 0;
}
