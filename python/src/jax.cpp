// JAX: planned Calls behind one XLA foreign function. A compiled program holds the id of its Call; the table below maps it back.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>

#include "array.h"
#include "call.h"
#include "module.h"
#include "xla_ffi.h"

namespace nb = nanobind;

namespace foveal::python {
namespace {

/// Which buffer each of the Call's tensors is: >= 0 an argument, < 0 the result ~slot, `absent` none.
constexpr std::int64_t absent = INT64_MAX;
constexpr std::uintptr_t workspace_alignment = 256;
constexpr std::array<std::int64_t, 1> rng_words{2};
struct Entry {
  std::shared_ptr<const Call> call;
  std::vector<std::int64_t> slots;
  std::int64_t workspace = absent, rng_state = absent;
  bool on_stream = false;
};

std::mutex table_mutex;
std::unordered_map<std::int64_t, std::shared_ptr<const Entry>> table;

/// Ids start at random, so that a program from another process's compilation cache finds nothing rather than a wrong Call.
std::int64_t next_id() {
  static std::int64_t id = static_cast<std::int64_t>(std::random_device{}()) << 24;
  return ++id;
}

void* error(const xla::Api* api, int code, const std::string& message) {
  xla::ErrorCreateArgs args{sizeof(xla::ErrorCreateArgs), nullptr, message.c_str(), code};
  return api->error_create(&args);
}

/// XLA aligns its buffers less than workspaces ask for: they come with room for this.
void* aligned(void* workspace) {
  return reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(workspace) + workspace_alignment - 1) / workspace_alignment *
                                 workspace_alignment);
}

void* run(const xla::CallFrame& frame) {
  std::int64_t id = 0;
  for (std::int64_t i = 0; i < frame.attrs.size; ++i) {
    const xla::ByteSpan& name = *frame.attrs.names[i];
    if (std::string_view(name.data, name.size) == "call") {
      id = *static_cast<const std::int64_t*>(static_cast<const xla::Scalar*>(frame.attrs.items[i])->value);
    }
  }
  std::shared_ptr<const Entry> entry;
  {
    const std::lock_guard lock(table_mutex);
    const auto it = table.find(id);
    if (it != table.end()) entry = it->second;
  }
  if (!entry) return error(frame.api, 9, "foveal: this compiled program was made in another process; compile it again");
  const auto address = [&frame](std::int64_t slot) -> void* {
    if (slot == absent) return nullptr;
    const xla::Buffers& buffers = slot >= 0 ? frame.args : frame.rets;
    return static_cast<const xla::Buffer*>(buffers.items[slot >= 0 ? slot : ~slot])->data;
  };
  Stream stream;
  if (entry->on_stream) {
    xla::StreamGetArgs args{sizeof(xla::StreamGetArgs), nullptr, frame.context, nullptr};
    if (void* failed = frame.api->stream_get(&args)) return failed;
    stream.handle = args.stream;
  }
  try {
    std::vector<TensorView> tensors = entry->call->tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].data = address(entry->slots[i]);
    DropoutRng rng;
    if (entry->rng_state != absent) {
      rng.state = contiguous_view(DType::i64, tensors[slots::q].device, rng_words.data(), 1);
      rng.state.data = address(entry->rng_state);
    }
    entry->call->run(tensors, rng, aligned(address(entry->workspace)), stream);
  } catch (const Error& e) {
    return error(frame.api, e.code() == ErrorCode::invalid_argument ? 3 : 13, e.what());
  } catch (const std::exception& e) {
    return error(frame.api, 13, e.what());
  }
  return nullptr;
}

void* handler(xla::CallFrame* frame) {
  for (xla::Extension* e = frame->extension; e != nullptr; e = e->next) {
    if (e->type == 1) {  // XLA asks what this handler was built for
      xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(e)->metadata;
      metadata.api_version.major = xla::api_major;
      metadata.api_version.minor = xla::api_minor;
      metadata.traits = 1;
      return nullptr;
    }
  }
  return frame->stage == 3 ? run(*frame) : nullptr;
}

}  // namespace

void bind_jax(nb::module_& m) {
  m.def("xla_handler", [] { return nb::capsule(reinterpret_cast<void*>(&handler), "xla._CUSTOM_CALL_TARGET"); });
  m.def(
      "xla_register",
      [](std::shared_ptr<Call> call, std::vector<std::int64_t> slots, std::int64_t workspace, std::int64_t rng_state, bool on_stream) {
        const std::lock_guard lock(table_mutex);
        const std::int64_t id = next_id();
        table[id] = std::make_shared<const Entry>(Entry{std::move(call), std::move(slots), workspace, rng_state, on_stream});
        return id;
      },
      nb::arg("call"), nb::arg("slots"), nb::arg("workspace"), nb::arg("rng_state"), nb::arg("on_stream"));
  m.attr("xla_absent") = absent;
  m.attr("workspace_alignment") = workspace_alignment;
}

}  // namespace foveal::python
