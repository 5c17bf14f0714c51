#include "cuda/record/emit_c.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <string_view>

#include "base/ascii.h"
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
  for (char& c : text) c = base::to_upper(c);
  return text;
}

void check_identifier(const std::string& name) {
  FOVEAL_CHECK(!name.empty() && !base::is_digit(name[0]) && std::all_of(name.begin(), name.end(), base::is_name_part), "emit: name \"",
               name, "\"; expected a C identifier");
}

/// Keywords of C11 and C++20, what C reserves for compilers, and others that they or the emitted program define.
bool is_taken(const std::string& name) {
  static constexpr std::string_view keywords[] = {
      "alignas",   "alignof",  "and",      "and_eq",   "asm",          "auto",      "bitand",       "bitor",         "bool",
      "break",     "case",     "catch",    "char",     "char16_t",     "char32_t",  "char8_t",      "class",         "co_await",
      "co_return", "co_yield", "compl",    "concept",  "const",        "consteval", "constexpr",    "constinit",     "const_cast",
      "continue",  "decltype", "default",  "delete",   "do",           "double",    "dynamic_cast", "else",          "enum",
      "explicit",  "export",   "extern",   "false",    "float",        "for",       "friend",       "goto",          "if",
      "inline",    "int",      "long",     "mutable",  "namespace",    "new",       "noexcept",     "not",           "not_eq",
      "nullptr",   "operator", "or",       "or_eq",    "private",      "protected", "public",       "register",      "reinterpret_cast",
      "requires",  "restrict", "return",   "short",    "signed",       "sizeof",    "static",       "static_assert", "static_cast",
      "struct",    "switch",   "template", "this",     "thread_local", "throw",     "true",         "try",           "typedef",
      "typeid",    "typename", "union",    "unsigned", "using",        "virtual",   "void",         "volatile",      "wchar_t",
      "while",     "xor",      "xor_eq"};
  static constexpr std::string_view others[] = {"linux", "unix", "NULL", "size_t", "word", "ALIGNED_64"};
  const auto is_in = [&name](const auto& names) { return std::find(std::begin(names), std::end(names), name) != std::end(names); };
  const bool reserved = name.find("__") != std::string::npos || (name.size() > 1 && name[0] == '_' && name[1] >= 'A' && name[1] <= 'Z');
  return reserved || is_in(keywords) || is_in(others);
}

/// The macros of a pass and their values, without the name before them.
std::vector<std::pair<std::string, std::string>> macros_of(const EmittedPass& pass) {
  std::size_t workspace = 0;
  for (const Recording& recording : pass.recordings) workspace = std::max(workspace, recording.workspace_bytes);
  std::vector<std::pair<std::string, std::string>> macros{{"WORKSPACE_BYTES", base::join(workspace, "u")}};
  std::vector<std::int64_t> sizes;
  for (const auto& [size, value] : pass.recordings[0].shape) {
    macros.emplace_back(upper(size), std::to_string(value));
    sizes.push_back(value);
  }
  macros.emplace_back("SHAPE", base::join("{", list(sizes), "}"));
  return macros;
}

void check_names(const std::vector<EmittedPass>& passes, const std::string& name) {
  check_identifier(name);
  FOVEAL_CHECK(!is_taken(name), "emit: name \"", name, "\"; expected a C identifier that neither C, C++ nor the program itself takes");
  std::set<std::string> functions{"load", "unload"}, macros{upper(name) + "_H"}, uppers;
  for (const EmittedPass& pass : passes) {
    check_identifier(pass.name);
    FOVEAL_CHECK(functions.insert(pass.name).second, "emit: two functions would be ", name, "_", pass.name,
                 "; expected other names of passes");
    FOVEAL_CHECK(uppers.insert(upper(pass.name)).second, "emit: names of passes that differ in case only, as ", pass.name,
                 " from another; expected names whose macros differ, too");
    for (const auto& [macro, value] : macros_of(pass)) macros.insert(upper(base::join(name, "_", pass.name, "_", macro)));
  }
  for (const std::string& function : functions)
    FOVEAL_CHECK(!macros.contains(base::join(name, "_", function)), "emit: ", name, "_", function,
                 " would be a macro and a function; expected a name with small letters");
}

bool is_table(const Recording::Block& block) { return block.name.empty(); }
bool is_callers(const Recording::Block& block) { return !is_table(block) && block.name != "workspace"; }

bool is_cooperative(const Recording& recording) {
  return std::any_of(recording.steps.begin(), recording.steps.end(), [](const auto& step) {
    const auto* launch = std::get_if<Recording::Launch>(&step);
    return launch && launch->cooperative;
  });
}

constexpr const char* driver_declarations = R"(#include <stddef.h>
#include <string.h>

#ifdef __cplusplus
#define ALIGNED_64 alignas(64)
extern "C" {
#else
#define ALIGNED_64 _Alignas(64)
#endif

/* The driver's functions that are called here, as cuda.h declares them. */
typedef unsigned long long word;
int cuCtxGetDevice(int* device);
int cuDeviceGetAttribute(int* value, int attribute, int device);
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
#ifdef __cplusplus
}
#endif

enum { success = 0, invalid_value = 1, no_binary_for_gpu = 209 };
enum { multiprocessor_count = 16, capability_major = 75, capability_minor = 76 }; /* of a device */
enum { max_dynamic_shared_bytes = 8 };                                            /* of a function */
)";

constexpr const char* encode_text = R"(
/* Fills the map of a tensor of `rank` dimensions inside a kernel's argument. */
static int encode(word* map, word address, int type, unsigned rank, const word* dims, const word* strides, const unsigned* box,
                  int l2_promotion) {
  static const unsigned steps[5] = {1, 1, 1, 1, 1};
  ALIGNED_64 word filled[16];
  const int error = cuTensorMapEncodeTiled(filled, type, rank, (void*)address, dims, strides, box, steps, 0, 3, l2_promotion, 0);
  memcpy(map, filled, sizeof filled);
  return error;
}
)";

/// load(): finds the device among those it was made for, then loads; NAME stands for the program's name.
constexpr const char* load_text = R"(
int NAME_load(struct NAME* loaded) {
  int error, device, major, minor, multiprocessors, d;
  size_t i;
  memset(loaded, 0, sizeof *loaded);
  if ((error = cuCtxGetDevice(&device)) != success) return error;
  if ((error = cuDeviceGetAttribute(&major, capability_major, device)) != success) return error;
  if ((error = cuDeviceGetAttribute(&minor, capability_minor, device)) != success) return error;
  if ((error = cuDeviceGetAttribute(&multiprocessors, multiprocessor_count, device)) != success) return error;
  for (d = 0; d < device_count; ++d)
    if (devices[d].major == major && (devices[d].exact ? devices[d].minor == minor : devices[d].minor <= minor) &&
        devices[d].multiprocessors <= multiprocessors)
      break;
  if (d == device_count) return no_binary_for_gpu;
  loaded->device = d;
  for (i = 0; i < sizeof kernels / sizeof *kernels; ++i) {
    if (!kernels[i].used[d]) continue;
    if ((error = cuModuleLoadData(&loaded->module[i], kernels[i].image)) != success) goto failed;
    if ((error = cuModuleGetFunction(&loaded->function[i], loaded->module[i], kernels[i].entry)) != success) goto failed;
    if (kernels[i].shared_bytes == 0) continue;
    if ((error = cuFuncSetAttribute(loaded->function[i], max_dynamic_shared_bytes, kernels[i].shared_bytes)) != success) goto failed;
  }
)";
constexpr const char* load_tables_text = R"(  for (i = 0; i < sizeof tables / sizeof *tables; ++i) {
    if (!tables[i].used[d]) continue;
    if ((error = cuMemAlloc_v2(&loaded->table[i], tables[i].bytes)) != success) goto failed;
    if ((error = cuMemcpyHtoD_v2(loaded->table[i], tables[i].words, tables[i].bytes)) != success) goto failed;
  }
)";
constexpr const char* load_end_text = R"(  return success;
failed:
  NAME_unload(loaded);
  return error;
}

int NAME_unload(struct NAME* loaded) {
  int error = success, result;
  size_t i;
  for (i = 0; i < sizeof kernels / sizeof *kernels; ++i)
    if (loaded->module[i] && (result = cuModuleUnload(loaded->module[i])) != success) error = result;
)";
constexpr const char* unload_tables_text = R"(  for (i = 0; i < sizeof tables / sizeof *tables; ++i)
    if (loaded->table[i] && (result = cuMemFree_v2(loaded->table[i])) != success) error = result;
)";

std::string with_name(std::string text, const std::string& name) {
  for (std::size_t at = 0; (at = text.find("NAME", at)) != std::string::npos; at += name.size()) text.replace(at, 4, name);
  return text;
}

/// Equal bytes are stored once in the program, whichever passes and devices use them.
struct Shared {
  std::string bytes, entry;  ///< entry: of a kernel
  std::string comment;
  unsigned shared_bytes = 0;
  std::set<std::size_t> devices;
};

std::size_t place_of(std::vector<Shared>& all, const std::string& bytes, const std::string& entry, std::size_t device) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Shared& one) { return one.bytes == bytes && one.entry == entry; });
  const auto place = static_cast<std::size_t>(found - all.begin());
  if (found == all.end()) all.push_back({.bytes = bytes, .entry = entry, .comment = {}, .shared_bytes = 0, .devices = {}});
  all[place].devices.insert(device);
  return place;
}

class Emitter {
 public:
  Emitter(const std::vector<EmittedPass>& passes, std::string name)
      : passes_(passes), name_(std::move(name)), devices_(passes[0].recordings.size()) {
    for (const EmittedPass& pass : passes_) {
      for (std::size_t d = 0; d < devices_; ++d) gather(pass.recordings[d], d);
    }
  }

  std::string header() const {
    const std::string guard = upper(name_) + "_H";
    std::string text = base::join("/* Made by `foveal emit`; needs the driver (libcuda) and nothing else. */\n#ifndef ", guard,
                                  "\n#define ", guard, "\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n");
    text += "struct CUmod_st;\nstruct CUfunc_st;\nstruct CUstream_st;\n\n";
    text += base::join("/* What is loaded into one context. */\nstruct ", name_, " {\n  int device; /* of those it was made for */\n");
    text += base::join("  struct CUmod_st* module[", kernels_.size(), "];\n  struct CUfunc_st* function[", kernels_.size(), "];\n");
    if (!tables_.empty()) text += base::join("  unsigned long long table[", tables_.size(), "];\n");
    text += base::join(
        "};\n\n/* All functions return a CUresult: 0 is success. Loading and unloading belong to the current context. Its device must be "
        "one "
        "of\n   these, else the result is 209, no binary for this GPU:\n",
        device_list(), "   Of each architecture, the code made for the most multiprocessors that the device has is taken. */\nint ", name_,
        "_load(struct ", name_, "* loaded);\nint ", name_, "_unload(struct ", name_, "* loaded);\n");
    for (const EmittedPass& pass : passes_) text += pass_header(pass);
    return text + "\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n";
  }

  std::string source() {
    std::string runs;
    for (std::size_t p = 0; p < passes_.size(); ++p) runs += run(p);
    std::string text = base::join("/* Made by `foveal emit`. */\n#include \"", name_, ".h\"\n\n", driver_declarations);
    for (std::size_t k = 0; k < kernels_.size(); ++k)
      text += base::join("\n/* ", kernels_[k].comment, " */\nstatic const word image_", k, "[] = {", words(kernels_[k].bytes), "\n};\n");
    for (std::size_t t = 0; t < tables_.size(); ++t)
      text += base::join("\nstatic const word table_", t, "[] = {", words(tables_[t].bytes), "\n};\n");
    for (std::size_t a = 0; a < arguments_.size(); ++a)
      text += base::join("\nstatic const word argument_", a, "[] = {", words(arguments_[a].bytes), "\n};\n");
    text += device_table();
    text += with_name(base::join(load_text, tables_.empty() ? "" : load_tables_text, load_end_text,
                                 tables_.empty() ? "" : unload_tables_text, "  memset(loaded, 0, sizeof *loaded);\n  return error;\n}\n"),
                      name_);
    if (fills_maps_) text += encode_text;
    return text + runs;
  }

 private:
  void gather(const Recording& recording, std::size_t device) {
    for (std::size_t k = 0; k < recording.kernels.size(); ++k) {
      const jit::Image& image = *recording.kernels[k];
      Shared& kernel = kernels_.at(kernel_place(image, device));
      kernel.comment = base::join(image.stem, ": ", image.bytes.size(), " bytes for ", image.arch);
      kernel.shared_bytes = std::max(kernel.shared_bytes, recording.shared_bytes[k]);
    }
    for (const Recording::Block& block : recording.blocks)
      if (is_table(block)) place_of(tables_, block.bytes, {}, device);
  }
  std::size_t kernel_place(const jit::Image& image, std::size_t device) {
    return place_of(kernels_, image.bytes + '\0', image.stem, device);
  }

  const Recording& at_device(std::size_t d) const { return passes_[0].recordings[d]; }

  /// A line for each architecture: "sm_90a, made for 132, 114 and 78 multiprocessors; devices with fewer run the last".
  std::string device_list() const {
    std::string text;
    for (std::size_t d = 0; d < devices_; ++d) {
      const bool first = d == 0 || at_device(d).arch != at_device(d - 1).arch;
      const bool last = d + 1 == devices_ || at_device(d + 1).arch != at_device(d).arch;
      if (first) text += base::join("     ", at_device(d).arch, ", made for ");
      if (!first) text += last ? " and " : ", ";
      text += std::to_string(at_device(d).multiprocessors);
      if (!last) continue;
      text += " multiprocessors; devices with fewer ";
      text += least_multiprocessors(d) > 1 ? "cannot run it" : first ? "run it too" : "run the last";
      text += "\n";
    }
    return text;
  }

  /// A device with fewer multiprocessors than a pass was made for runs it in more waves, unless all CTAs must be resident at once; the
  /// last entry of an arch therefore takes any device that it can.
  int least_multiprocessors(std::size_t d) const {
    const bool last = d + 1 == devices_ || at_device(d + 1).arch != at_device(d).arch;
    const bool cooperative =
        std::any_of(passes_.begin(), passes_.end(), [d](const EmittedPass& pass) { return is_cooperative(pass.recordings[d]); });
    return last && !cooperative ? 1 : at_device(d).multiprocessors;
  }

  std::string device_table() const {
    std::string text = base::join("\nenum { device_count = ", devices_,
                                  " };\nstatic const struct {\n  int major, minor, exact, multiprocessors;\n} devices[] = {\n");
    for (std::size_t d = 0; d < devices_; ++d) {
      const std::string& arch = at_device(d).arch;  // "sm_90a"
      const int capability = std::stoi(arch.substr(3));
      const bool exact = !base::is_digit(arch.back());
      text += base::join("  {", capability / 10, ", ", capability % 10, ", ", exact ? 1 : 0, ", ", least_multiprocessors(d), "},\n");
    }
    text +=
        "};\nstatic const struct {\n  const word* image;\n  const char* entry;\n  int shared_bytes;\n  unsigned char "
        "used[device_count];\n} kernels[] = {\n";
    for (std::size_t k = 0; k < kernels_.size(); ++k)
      text += base::join("  {image_", k, ", \"", kernels_[k].entry, "\", ", kernels_[k].shared_bytes, ", {", used(kernels_[k]), "}},\n");
    text += "};\n";
    if (tables_.empty()) return text;
    text += "static const struct {\n  const word* words;\n  size_t bytes;\n  unsigned char used[device_count];\n} tables[] = {\n";
    for (std::size_t t = 0; t < tables_.size(); ++t)
      text += base::join("  {table_", t, ", ", tables_[t].bytes.size(), "u, {", used(tables_[t]), "}},\n");
    return text + "};\n";
  }

  std::string used(const Shared& shared) const {
    std::vector<int> flags(devices_);
    for (const std::size_t d : shared.devices) flags[d] = 1;
    return list(flags);
  }

  std::string pass_header(const EmittedPass& pass) const {
    const Recording& first = pass.recordings[0];
    const std::string own = name_ + "_" + pass.name, macro = upper(own);
    std::string text = base::join("\n/* ", first.problem, " */\n");
    for (const auto& [name, value] : macros_of(pass)) text += base::join("#define ", macro, "_", name, " ", value, "\n");
    text += base::join("struct ", own, "_shape {\n");
    for (const auto& [size, value] : first.shape) text += base::join("  long long ", size, ";\n");
    text += base::join(
        "};\n/* The shape of the caller's tensors, which must be the one above, and memory of the device, aligned to 16 bytes. */\nstruct ",
        own, "_buffers {\n  struct ", own, "_shape shape;\n");
    for (const Recording::Block& block : first.blocks) {
      if (!is_callers(block)) continue;
      text += base::join("  ", block.written ? "" : "const ", "void* ", block.name, "; /* ", block.written ? "out: " : "in: ", block.about,
                         " */\n");
    }
    return text +
           base::join("};\n/* Queues the pass on the stream; neither allocates nor waits. workspace: ", macro,
                      "_WORKSPACE_BYTES of the device's memory,\n   aligned to 256. Another shape, or an address that is null or not "
                      "aligned: 1, invalid value, and nothing is queued. */\nint ",
                      own, "(const struct ", name_, "* loaded, const struct ", own,
                      "_buffers* buffers, void* workspace, struct CUstream_st* stream);\n");
  }

  /// An address as a number.
  std::string number(const Recording& recording, const Recording::Address& address, std::size_t device) {
    const Recording::Block& block = recording.blocks[static_cast<std::size_t>(address.block)];
    const std::string text = is_table(block) ? base::join("loaded->table[", place_of(tables_, block.bytes, {}, device), "]")
                                             : base::join("(word)", is_callers(block) ? "buffers->" : "", block.name);
    return address.offset > 0 ? base::join(text, " + ", address.offset, "u") : text;
  }

  /// The pass on each device; devices with the same driver calls share a function, which has a number, so that no pass has its name.
  std::string run(std::size_t number_of_pass) {
    const EmittedPass& pass = passes_[number_of_pass];
    const std::string own = name_ + "_" + pass.name;
    const std::string parameters = base::join("(const struct ", name_, "* loaded, const struct ", own,
                                              "_buffers* buffers, void* workspace, struct CUstream_st* stream)");
    std::string text, cases;
    std::map<std::string, std::size_t> functions;
    for (std::size_t d = 0; d < devices_; ++d) {
      const auto [function, is_new] = functions.emplace(steps(pass.recordings[d], d), functions.size());
      if (is_new) {
        text += base::join("\nstatic int pass_", number_of_pass, "_", function->second, parameters, " {\n  int error;\n", function->first,
                           "  (void)loaded;\n  (void)workspace;\n  return success;\n}\n");
      }
      cases += base::join("    case ", d, ":\n      return pass_", number_of_pass, "_", function->second,
                          "(loaded, buffers, workspace, stream);\n");
    }
    const Recording& first = pass.recordings[0];
    std::string shape, together, absent;
    for (const auto& [size, value] : first.shape)
      shape += base::join(shape.empty() ? "" : " ||\n      ", "buffers->shape.", size, " != ", upper(own), "_", upper(size));
    for (const Recording::Block& block : first.blocks) {
      if (!is_callers(block)) continue;
      together += base::join(together.empty() ? "" : " | ", "(word)buffers->", block.name);
      absent += base::join("!buffers->", block.name, " || ");
    }
    absent += base::join("(!workspace && ", upper(own), "_WORKSPACE_BYTES > 0)");
    return text + base::join("\nint ", own, parameters, " {\n  if (", shape, ")\n    return invalid_value;\n  if (", absent,
                             ") return invalid_value;\n  if ((", together,
                             ") % 16 != 0 || (word)workspace % 256 != 0) return invalid_value;\n  switch (loaded->device) {\n", cases,
                             "    default:\n      return invalid_value;\n  }\n}\n");
  }

  std::string steps(const Recording& recording, std::size_t device) {
    std::string text;
    for (const auto& step : recording.steps) {
      if (const auto* fill = std::get_if<Recording::Fill>(&step)) {
        text += base::join("  if ((error = cuMemsetD8Async(", number(recording, fill->address, device), ", ", fill->value, ", ",
                           fill->bytes, "u, stream)) != success) return error;\n");
      } else {
        text += launch_text(recording, std::get<Recording::Launch>(step), device);
      }
    }
    return text;
  }

  std::string launch_text(const Recording& recording, const Recording::Launch& launch, std::size_t device) {
    const jit::Image& image = *recording.kernels[static_cast<std::size_t>(launch.kernel)];
    std::string text = base::join("  { /* ", image.stem, " */\n    ALIGNED_64 word argument[", (launch.argument.size() + 7) / 8,
                                  "];\n    void* parameters[1];\n    parameters[0] = argument;\n    memcpy(argument, argument_",
                                  place_of(arguments_, launch.argument, {}, device), ", sizeof argument);\n");
    for (const auto& [at, address] : launch.addresses)
      text += base::join("    argument[", at / 8, "] = ", number(recording, address, device), ";\n");
    for (const auto& [at, map] : launch.maps) text += map_text(recording, at, map, device);
    return text + base::join("    if ((error = ", launch.cooperative ? "cuLaunchCooperativeKernel" : "cuLaunchKernel", "(loaded->function[",
                             kernel_place(image, device), "], ", launch.grid[0], ", ", launch.grid[1], ", ", launch.grid[2], ", ",
                             launch.threads, ", 1, 1, ", launch.shared_bytes, ", stream, parameters", launch.cooperative ? "" : ", NULL",
                             ")) != success) return error;\n  }\n");
  }

  std::string map_text(const Recording& recording, std::size_t at, const Recording::TensorMap& map, std::size_t device) {
    const bool plain =
        map.element_strides == std::vector<unsigned>(map.dims.size(), 1) && map.interleave == 0 && map.swizzle == 3 && map.outside == 0;
    if (!plain) base::fail(ErrorCode::unsupported, "emit: a tensor map of another kind");
    fills_maps_ = true;
    return base::join("    {\n      static const word dims[] = {", list(map.dims), "}, strides[] = {", list(map.strides_bytes),
                      "};\n      static const unsigned box[] = {", list(map.box), "};\n      if ((error = encode(argument + ", at / 8, ", ",
                      number(recording, map.address, device), ", ", map.type, ", ", map.dims.size(), ", dims, strides, box, ",
                      map.l2_promotion, ")) != success) return error;\n    }\n");
  }

  const std::vector<EmittedPass>& passes_;
  std::string name_;
  std::size_t devices_;
  bool fills_maps_ = false;
  std::vector<Shared> kernels_, tables_, arguments_;
};

}  // namespace

EmittedC emit_c(const std::vector<EmittedPass>& passes, const std::string& name) {
  FOVEAL_CHECK(!passes.empty() && !passes[0].recordings.empty(), "emit: no pass is given");
  for (const EmittedPass& pass : passes)
    FOVEAL_CHECK(pass.recordings.size() == passes[0].recordings.size(), "emit: passes recorded for unequal numbers of devices");
  check_names(passes, name);
  Emitter emitter(passes, name);
  return {emitter.header(), emitter.source()};
}

}  // namespace foveal::cuda
