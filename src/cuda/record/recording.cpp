#include "cuda/record/recording.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cuda/arch.h"
#include "cuda/jit/driver.h"
#include "cuda/kernels_of.h"
#include "problem/call.h"

namespace foveal::cuda {
namespace {

using Word = std::uint64_t;

constexpr int map_block = 255;  ///< block number of a tensor map; the offset says which

/// The run as it was called, with made-up addresses: `tag`, block and offset in one word.
struct RawLaunch {
  driver::LaunchConfig config;
  driver::Function function;
  bool cooperative;
  std::string argument;
};
struct RawFill {
  Word address;
  unsigned char value;
  std::size_t bytes;
};
struct RawMap {
  Word address;
  Recording::TensorMap map;
};

struct Recorder {
  Word tag;
  int blocks;  ///< those of the caller, the workspace, then tables as they are made
  std::vector<std::string> tables{};
  std::vector<std::variant<RawLaunch, RawFill>> steps{};
  std::vector<RawMap> maps{};

  Word address(int block, std::uint64_t offset = 0) const { return tag << 48 | static_cast<Word>(block) << 40 | offset; }
};
thread_local Recorder* recorder = nullptr;

Recording::Address place_of(Word address) { return {static_cast<int>(address >> 40 & 0xff), address & ((Word{1} << 40) - 1)}; }

template <class... Arguments>
driver::Result not_recorded(Arguments...) {
  return 801;  // not supported
}

driver::Result record_launch(const driver::LaunchConfig* config, driver::Function function, void** arguments, void**) {
  bool cooperative = false;
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    const int id = config->attributes[i].id;
    if (id == driver::LaunchAttribute::programmatic_stream_serialization) continue;  // an ordinary launch does the same, a little later
    if (id != driver::LaunchAttribute::cooperative) return 801;
    cooperative = true;
  }
  const std::size_t bytes = *static_cast<const std::size_t*>(arguments[1]);
  recorder->steps.emplace_back(RawLaunch{*config, function, cooperative, std::string(static_cast<const char*>(arguments[0]), bytes)});
  return 0;
}

driver::Result record_map(driver::TensorMap* map, int type, unsigned rank, void* address, const std::uint64_t* dims,
                          const std::uint64_t* strides_bytes, const unsigned* box, const unsigned* element_strides, int interleave,
                          int swizzle, int l2_promotion, int outside) {
  std::memset(map, 0, sizeof *map);
  map->opaque[0] = recorder->address(map_block, recorder->maps.size());
  Recording::TensorMap recorded{.address = {},
                                .type = type,
                                .dims = {dims, dims + rank},
                                .strides_bytes = {strides_bytes, strides_bytes + rank - 1},
                                .box = {box, box + rank},
                                .element_strides = {element_strides, element_strides + rank},
                                .interleave = interleave,
                                .swizzle = swizzle,
                                .l2_promotion = l2_promotion,
                                .outside = outside};
  recorder->maps.push_back({reinterpret_cast<Word>(address), std::move(recorded)});
  return 0;
}

/// A driver that records. A function's handle is the address of its machine code.
driver::Api recording_api() {
  driver::Api api;
#define FOVEAL_X(name, symbol, parameters) api.name = not_recorded;
  FOVEAL_DRIVER_FUNCTIONS(FOVEAL_X)
#undef FOVEAL_X
  api.error_name = [](driver::Result, const char** text) { return *text = "not recorded", 0; };
  api.error_string = [](driver::Result, const char** text) { return *text = "this call cannot be repeated by an emitted program", 0; };
  api.context_current = [](driver::Context* current) { return *current = nullptr, 0; };
  api.context_push = [](driver::Context) { return 0; };
  api.context_pop = [](driver::Context*) { return 0; };
  api.library_load = [](driver::Library* library, const void* image, void*, void*, unsigned, void*, void*, unsigned) {
    *library = static_cast<driver::Library>(const_cast<void*>(image));
    return 0;
  };
  api.library_kernel = [](driver::KernelHandle* kernel, driver::Library library, const char*) {
    *kernel = reinterpret_cast<driver::KernelHandle>(library);
    return 0;
  };
  api.kernel_function = [](driver::Function* function, driver::KernelHandle kernel) {
    *function = reinterpret_cast<driver::Function>(kernel);
    return 0;
  };
  api.function_set_attribute = [](driver::Function, driver::FunctionAttribute, int) { return 0; };
  api.memory_alloc = [](driver::DevicePointer* pointer, std::size_t) {
    *pointer = recorder->address(recorder->blocks + static_cast<int>(recorder->tables.size()));
    recorder->tables.emplace_back();
    return 0;
  };
  api.memory_free = [](driver::DevicePointer) { return 0; };
  api.exchange_capture_mode = [](int*) { return 0; };
  api.copy_to_device_async = [](driver::DevicePointer to, const void* from, std::size_t bytes, driver::StreamHandle) {
    recorder->tables[static_cast<std::size_t>(place_of(to).block - recorder->blocks)].assign(static_cast<const char*>(from), bytes);
    return 0;
  };
  api.stream_create = [](driver::StreamHandle* stream, unsigned) { return *stream = nullptr, 0; };
  api.stream_destroy = [](driver::StreamHandle) { return 0; };
  api.stream_synchronize = [](driver::StreamHandle) { return 0; };
  api.set_bytes = [](driver::DevicePointer to, unsigned char value, std::size_t bytes, driver::StreamHandle) {
    recorder->steps.emplace_back(RawFill{to, value, bytes});
    return 0;
  };
  api.launch = record_launch;
  api.tensor_map_encode_tiled = record_map;
  return api;
}

std::string about(const problem::TensorSpec& spec) {
  const auto list = [&](const auto& values) {
    std::string text;
    for (int d = 0; d < spec.rank; ++d) text += base::join(d > 0 ? ", " : "", values[static_cast<std::size_t>(d)]);
    return text;
  };
  return base::join(to_string(spec.dtype), " [", list(spec.sizes), "], strides [", list(spec.strides), "]");
}

/// The caller's blocks, and the call's buffers with one made-up address for each.
class Caller {
 public:
  Caller(const problem::Problem& p, Word tag) : tag_(tag) {
    for (const problem::Role& role : problem::roles) add(role.name, p.*role.spec, role.output(p.pass), buffers.*role.view);
    if (p.attention.dropout_p > 0) {
      problem::TensorSpec state{.present = true, .dtype = DType::i64, .rank = 1};
      state.sizes[0] = 2, state.strides[0] = 1;
      add("rng_state", state, false, buffers.rng.state);
      blocks.back().about = "seed and offset of dropout, " + blocks.back().about;
    }
    for (const problem::ParamSpec& param : p.params) {
      add("param_" + param.param.name(), param.tensor, false, buffers.params.emplace_back());
      add("dparam_" + param.param.name(), param.gradient, true, buffers.dparams.emplace_back());
    }
  }

  problem::Buffers buffers;
  std::vector<Recording::Block> blocks;

 private:
  void add(const std::string& name, const problem::TensorSpec& spec, bool written, TensorView& view) {
    if (!spec.present) return;
    view.data = reinterpret_cast<void*>(tag_ << 48 | static_cast<Word>(blocks.size()) << 40);
    view.dtype = spec.dtype;
    view.rank = spec.rank;
    view.sizes = spec.sizes, view.strides = spec.strides;
    blocks.push_back({name, about(spec), {}, written});
  }

  Word tag_;
};

std::vector<std::pair<std::string, std::int64_t>> shape_of(const problem::Problem& p) {
  std::vector<std::pair<std::string, std::int64_t>> shape{{"batch", p.batch}, {"heads_q", p.heads_q}, {"heads_kv", p.heads_kv}};
  if (p.varlen) shape.insert(shape.end(), {{"total_q", p.total_q}, {"total_kv", p.total_kv}});
  shape.insert(shape.end(),
               {{p.varlen ? "max_seqlen_q" : "seqlen_q", p.seqlen_q}, {p.ragged_kv() ? "max_seqlen_kv" : "seqlen_kv", p.seqlen_kv}});
  if (p.paged) shape.insert(shape.end(), {{"pages", p.pages()}, {"page_size", p.page_size()}});
  shape.insert(shape.end(), {{"head_dim", p.head_dim}, {"head_dim_v", p.head_dim_v}});
  return shape;
}

constexpr Word tags[] = {0x5a, 0xa5};  ///< of the addresses of two runs

/// A word that differs between the two runs, whose tags differ, is an address. Everything else is equal: arguments have no padding.
void find_addresses(Recording::Launch& launch, const std::string& other, const std::vector<Recording::TensorMap>& maps) {
  for (std::size_t at = 0; at + sizeof(Word) <= launch.argument.size(); at += sizeof(Word)) {
    Word here, there;
    std::memcpy(&here, launch.argument.data() + at, sizeof here);
    std::memcpy(&there, other.data() + at, sizeof there);
    if (here == there) continue;
    if ((here ^ there) != (tags[0] ^ tags[1]) << 48 || here >> 48 != tags[0])
      base::fail(ErrorCode::unsupported, "emit: byte ", at, " of a kernel's argument is no address and not the same in two runs");
    const Recording::Address place = place_of(here);
    if (place.block == map_block) {
      launch.maps.emplace_back(at, maps[place.offset]);
    } else {
      launch.addresses.emplace_back(at, place);
    }
    constexpr Word nothing = 0;
    std::memcpy(launch.argument.data() + at, &nothing, sizeof nothing);
  }
}

}  // namespace

Recording record(const problem::Problem& p, const std::string& arch, const std::string& target, int multiprocessors) {
  if (p.attention.checked) base::fail(ErrorCode::unsupported, "checked: such a pass waits for the device, which no emitted program does");
  static const driver::Api api = recording_api();
  const std::vector<jit::KernelSource> sources = executable_of(p, arch, target, multiprocessors)->sources();
  const auto images = jit::compile(sources);
  std::vector<std::shared_ptr<const jit::Image>> kernels;  // equal sources have one image
  for (const auto& image : images)
    if (std::find(kernels.begin(), kernels.end(), image) == kernels.end()) kernels.push_back(image);
  driver::DeviceFacts facts;

  Recording recording{.problem = p.line(),
                      .kernel = {},
                      .arch = sources[0].arch,
                      .multiprocessors = multiprocessors > 0 ? multiprocessors : multiprocessors_of(arch)[0],
                      .shape = shape_of(p),
                      .kernels = kernels,
                      .shared_bytes = std::vector<unsigned>(kernels.size()),
                      .blocks = Caller(p, 0).blocks,
                      .workspace_bytes = 0,
                      .steps = {}};
  const int workspace_block = static_cast<int>(recording.blocks.size());
  const auto run_with = [&](Word tag) {
    Recorder run{.tag = tag, .blocks = workspace_block + 1};
    recorder = &run;
    const driver::Redirected redirected(api, facts);
    const auto executable = executable_of(p, arch, target, multiprocessors);
    executable->load(images);
    executable->run(Caller(p, tag).buffers, reinterpret_cast<void*>(run.address(workspace_block)), {});
    recording.kernel = executable->kernel();
    recording.workspace_bytes = executable->workspace_bytes();
    return run;
  };
  Recorder run = run_with(tags[0]), again = run_with(tags[1]);
  recording.blocks.push_back({"workspace", base::join(recording.workspace_bytes, " bytes, aligned to 256"), {}, true});
  for (std::string& table : run.tables) recording.blocks.push_back({"", "", std::move(table), false});

  std::vector<Recording::TensorMap> maps;
  for (RawMap& raw : run.maps) {
    raw.map.address = place_of(raw.address);
    maps.push_back(std::move(raw.map));
  }
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    if (const auto* fill = std::get_if<RawFill>(&run.steps[i])) {
      recording.steps.emplace_back(Recording::Fill{place_of(fill->address), fill->value, fill->bytes});
      continue;
    }
    const auto& raw = std::get<RawLaunch>(run.steps[i]);
    const auto image = std::find_if(kernels.begin(), kernels.end(), [&](const auto& candidate) {
      return static_cast<const void*>(candidate->bytes.c_str()) == static_cast<const void*>(raw.function);
    });
    Recording::Launch launch{.kernel = static_cast<int>(image - kernels.begin()),
                             .grid = {raw.config.grid_x, raw.config.grid_y, raw.config.grid_z},
                             .threads = raw.config.block_x,
                             .shared_bytes = raw.config.shared_bytes,
                             .cooperative = raw.cooperative,
                             .argument = raw.argument,
                             .addresses = {},
                             .maps = {}};
    find_addresses(launch, std::get<RawLaunch>(again.steps[i]).argument, maps);
    unsigned& most = recording.shared_bytes[static_cast<std::size_t>(launch.kernel)];
    most = std::max(most, launch.shared_bytes);
    recording.steps.emplace_back(std::move(launch));
  }
  return recording;
}

Explanation explain(const problem::Problem& p, const std::string& arch, const std::string& target, int multiprocessors) {
  static const driver::Api api = recording_api();
  driver::DeviceFacts facts;
  const auto executable = executable_of(p, arch, target, multiprocessors);
  const auto images = jit::compile(executable->sources());
  Recorder loads{.tag = tags[0], .blocks = 1};
  recorder = &loads;
  const driver::Redirected redirected(api, facts);
  executable->load(images);
  Explanation explanation;
  explanation.problem = p.line(), explanation.backend = "cuda";
  explanation.workspace_bytes = executable->workspace_bytes();
  executable->describe(explanation);
  explanation.kernel = executable->kernel();
  return explanation;
}

}  // namespace foveal::cuda
