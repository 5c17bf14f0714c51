#include "cuda/emit_c.h"

#include <cctype>
#include <cstring>

#include "base/check.h"

namespace foveal::cuda {
namespace {

std::string hex(std::uint64_t value) {
  char text[20];
  const auto end = std::to_chars(text, text + sizeof text, value, 16);
  return "0x" + std::string(text, end.ptr) + "u";
}

/// Bytes as initialisers of 64-bit words (of a little-endian machine, as all with such devices are), padded with zeros.
std::string words(const std::string& bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    text += base::join(at % 64 == 0 ? "\n  " : " ", word == 0 ? "0" : hex(word), ",");
  }
  return text;
}

template <class Values>
std::string list(const Values& values) {
  std::string text;
  for (const auto& value : values) text += base::join(text.empty() ? "" : ", ", value);
  return text;
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

constexpr const char* driver_declarations = R"(#include <stddef.h>
#include <string.h>

/* The driver's functions that are called here, as cuda.h declares them. */
typedef unsigned long long word;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;
int cuModuleLoadData(struct CUmod_st** module, const void* image);
int cuModuleUnload(struct CUmod_st* module);
int cuModuleGetFunction(struct CUfunc_st** function, struct CUmod_st* module, const char* name);
int cuFuncSetAttribute(struct CUfunc_st* function, int attribute, int value);
int cuMemAlloc_v2(word* pointer, size_t bytes);
int cuMemFree_v2(word pointer);
int cuMemcpyHtoD_v2(word to, const void* from, size_t bytes);
int cuMemsetD8Async(word to, unsigned char value, size_t bytes, struct CUstream_st* stream);
int cuLaunchKernel(struct CUfunc_st* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes, struct CUstream_st* stream, void** parameters, void** extra);
int cuLaunchCooperativeKernel(struct CUfunc_st* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y, unsigned block_z, unsigned shared_bytes, struct CUstream_st* stream, void** parameters);
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const word* dims, const word* strides, const unsigned* box,
                           const unsigned* element_strides, int interleave, int swizzle, int l2_promotion, int outside);

enum { success = 0, invalid_value = 1, max_dynamic_shared_bytes = 8 };
)";

class Emitter {
 public:
  Emitter(const Recording& recording, std::string name) : r_(recording), name_(std::move(name)) {}

  std::string header() const {
    std::string text = base::join(
        "/* ", r_.problem, "\n   ", r_.kernel, " for ", r_.kernels[0]->arch,
        ". Made by `foveal emit`; needs the driver (libcuda) and nothing else. */\n#ifndef ", upper(name_), "_H\n#define ", upper(name_),
        "_H\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\nstruct CUmod_st;\nstruct CUfunc_st;\nstruct CUstream_st;\n\n");
    text += base::join("#define ", upper(name_), "_WORKSPACE_BYTES ", r_.workspace_bytes, "u\n\n");
    text += base::join("/* Memory of the device. Tensors are aligned to 16 bytes. */\nstruct ", name_, "_buffers {\n");
    for (const Recording::Block& block : r_.blocks) {
      if (!is_callers(block)) continue;
      text += base::join("  ", block.written ? "" : "const ", "void* ", block.name, "; /* ", block.written ? "out: " : "in: ", block.about,
                         " */\n");
    }
    text += base::join("};\n\n/* What is loaded into one context. */\nstruct ", name_, " {\n  struct CUmod_st* module[", r_.kernels.size(),
                       "];\n  struct CUfunc_st* function[", r_.kernels.size(), "];\n");
    if (tables() > 0) text += base::join("  unsigned long long table[", tables(), "];\n");
    text += base::join("};\n\n/* All return a CUresult: 0 is success. Loading and unloading belong to the current context. */\nint ", name_,
                       "_load(struct ", name_,
                       "* loaded);\n/* Queues the work on the stream; neither allocates nor waits. workspace: ", upper(name_),
                       "_WORKSPACE_BYTES of the device's memory, aligned to 256. */\nint ", name_, "_run(const struct ", name_,
                       "* loaded, const struct ", name_, "_buffers* buffers, void* workspace, struct CUstream_st* stream);\nint ", name_,
                       "_unload(struct ", name_, "* loaded);\n\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n");
    return text;
  }

  std::string source() {
    std::string text = base::join("/* ", r_.problem, " */\n#include \"", name_, ".h\"\n\n", driver_declarations);
    for (std::size_t k = 0; k < r_.kernels.size(); ++k) {
      const jit::Image& image = *r_.kernels[k];
      text += base::join("\n/* ", image.entry, ": ", image.bytes.size(), " bytes for ", image.arch, " */\nstatic const word image_", k,
                         "[] = {", words(image.bytes + '\0'), "\n};\n");
    }
    int table = 0;
    for (const Recording::Block& block : r_.blocks)
      if (block.name.empty()) text += base::join("\nstatic const word table_", table++, "[] = {", words(block.bytes), "\n};\n");
    return text + load() + run() + unload();
  }

 private:
  static bool is_callers(const Recording::Block& block) { return !block.name.empty() && block.name != "workspace"; }
  int tables() const {
    int count = 0;
    for (const Recording::Block& block : r_.blocks) count += block.name.empty();
    return count;
  }

  std::string load() const {
    std::string text =
        base::join("\nint ", name_, "_load(struct ", name_, "* loaded) {\n  int error;\n  memset(loaded, 0, sizeof *loaded);\n");
    const auto call = [&](const std::string& words) { text += base::join("  if ((error = ", words, ") != success) goto failed;\n"); };
    for (std::size_t k = 0; k < r_.kernels.size(); ++k) {
      call(base::join("cuModuleLoadData(&loaded->module[", k, "], image_", k, ")"));
      call(base::join("cuModuleGetFunction(&loaded->function[", k, "], loaded->module[", k, "], \"", r_.kernels[k]->entry, "\")"));
      if (r_.shared_bytes[k] > 0)
        call(base::join("cuFuncSetAttribute(loaded->function[", k, "], max_dynamic_shared_bytes, ", r_.shared_bytes[k], ")"));
    }
    int table = 0;
    for (const Recording::Block& block : r_.blocks) {
      if (!block.name.empty()) continue;
      call(base::join("cuMemAlloc_v2(&loaded->table[", table, "], ", block.bytes.size(), "u)"));
      call(base::join("cuMemcpyHtoD_v2(loaded->table[", table, "], table_", table, ", ", block.bytes.size(), "u)"));
      ++table;
    }
    return text + base::join("  return success;\nfailed:\n  ", name_, "_unload(loaded);\n  return error;\n}\n");
  }

  std::string unload() const {
    std::string text = base::join("\nint ", name_, "_unload(struct ", name_, "* loaded) {\n  int error = success, result;\n");
    text += base::join("  for (int k = 0; k < ", r_.kernels.size(),
                       "; ++k)\n    if (loaded->module[k] && (result = cuModuleUnload(loaded->module[k])) != success) error = result;\n");
    if (tables() > 0) {
      text += base::join("  for (int t = 0; t < ", tables(),
                         "; ++t)\n    if (loaded->table[t] && (result = cuMemFree_v2(loaded->table[t])) != success) error = result;\n");
    }
    return text + "  memset(loaded, 0, sizeof *loaded);\n  return error;\n}\n";
  }

  /// An address as a number.
  std::string number(const Recording::Address& address) const {
    const Recording::Block& block = r_.blocks[static_cast<std::size_t>(address.block)];
    std::string text;
    if (block.name.empty()) {
      int table = 0;
      for (int b = 0; b < address.block; ++b) table += r_.blocks[static_cast<std::size_t>(b)].name.empty();
      text = base::join("loaded->table[", table, "]");
    } else {
      text = base::join("(word)", is_callers(block) ? "buffers->" : "", block.name);
    }
    return address.offset > 0 ? base::join(text, " + ", address.offset, "u") : text;
  }

  std::string run() {
    std::string constants, body;
    int launches = 0;
    for (const auto& step : r_.steps) {
      if (const auto* fill = std::get_if<Recording::Fill>(&step)) {
        body += base::join("  if ((error = cuMemsetD8Async(", number(fill->address), ", ", fill->value, ", ", fill->bytes,
                           "u, stream)) != success) return error;\n");
        continue;
      }
      const auto& launch = std::get<Recording::Launch>(step);
      constants += base::join("\nstatic const word argument_", launches, "[] = {", words(launch.argument), "\n};\n");
      body += launch_text(launch, launches++);
    }
    std::string text = constants, together;
    for (const Recording::Block& block : r_.blocks)
      if (is_callers(block)) together += base::join(together.empty() ? "" : " | ", "(word)buffers->", block.name);
    if (body.find("encode(") != std::string::npos) text += encode_text;
    text +=
        base::join("\nint ", name_, "_run(const struct ", name_, "* loaded, const struct ", name_,
                   "_buffers* buffers, void* workspace, struct CUstream_st* stream) {\n  int error;\n  const word together = ", together,
                   ";\n  (void)workspace;\n  if (together % 16 != 0) return invalid_value;\n", body, "  return success;\n}\n");
    return text;
  }

  static constexpr const char* encode_text = R"(
/* Fills the map of a tensor of `rank` dimensions inside a kernel's argument. */
static int encode(word* map, word address, int type, unsigned rank, const word* dims, const word* strides, const unsigned* box) {
  static const unsigned steps[5] = {1, 1, 1, 1, 1};
  _Alignas(64) word filled[16];
  const int error = cuTensorMapEncodeTiled(filled, type, rank, (void*)address, dims, strides, box, steps, 0, 3, 3, 0);
  memcpy(map, filled, sizeof filled);
  return error;
}
)";

  std::string launch_text(const Recording::Launch& launch, int index) const {
    std::string text =
        base::join("  { /* ", r_.kernels[static_cast<std::size_t>(launch.kernel)]->entry, " */\n    _Alignas(64) word argument[",
                   (launch.argument.size() + 7) / 8, "];\n    void* parameters[] = {argument};\n    memcpy(argument, argument_", index,
                   ", sizeof argument);\n");
    for (const auto& [at, address] : launch.addresses) text += base::join("    argument[", at / 8, "] = ", number(address), ";\n");
    for (const auto& [at, map] : launch.maps) {
      const bool plain = map.element_strides == std::vector<unsigned>(map.dims.size(), 1) && map.interleave == 0 && map.swizzle == 3 &&
                         map.l2_promotion == 3 && map.outside == 0;
      if (!plain) base::fail(ErrorCode::unsupported, "emit: a tensor map of another kind");
      text += base::join("    if ((error = encode(argument + ", at / 8, ", ", number(map.address), ", ", map.type, ", ", map.dims.size(),
                         ", (const word[]){", list(map.dims), "}, (const word[]){", list(map.strides_bytes), "}, (const unsigned[]){",
                         list(map.box), "})) != success) return error;\n");
    }
    text +=
        base::join("    if ((error = ", launch.cooperative ? "cuLaunchCooperativeKernel" : "cuLaunchKernel", "(loaded->function[",
                   launch.kernel, "], ", launch.grid[0], ", ", launch.grid[1], ", ", launch.grid[2], ", ", launch.threads, ", 1, 1, ",
                   launch.shared_bytes, ", stream, parameters", launch.cooperative ? "" : ", NULL", ")) != success) return error;\n  }\n");
    return text;
  }

  const Recording& r_;
  std::string name_;
};

}  // namespace

EmittedC emit_c(const Recording& recording, const std::string& name) {
  FOVEAL_CHECK(!name.empty() && !std::isdigit(static_cast<unsigned char>(name[0])), "emit: name \"", name, "\"; expected a C identifier");
  for (const char c : name) {
    FOVEAL_CHECK(std::isalnum(static_cast<unsigned char>(c)) || c == '_', "emit: name \"", name, "\"; expected a C identifier");
  }
  Emitter emitter(recording, name);
  return {emitter.header(), emitter.source()};
}

}  // namespace foveal::cuda
