// JAX: planned Calls behind one XLA foreign function. A compiled program contains the text of its Call; the table below caches Calls by
// text. Compiled programs may outlive the process in a cache on disk, so a Call that is not in the table is planned again from its text.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "array.h"
#include "base/lru_cache.h"
#include "call.h"
#include "module.h"
#include "xla_ffi.h"

namespace nb = nanobind;

namespace foveal::python {
namespace {

/// The buffer of each tensor of the Call: argument n >= 0, result ~n < 0, or `absent`.
constexpr std::int64_t absent = INT64_MAX;
constexpr std::uintptr_t workspace_alignment = 256;
constexpr std::array<std::int64_t, 1> rng_words{2};
struct Entry {
  std::shared_ptr<const Call> call;
  std::vector<std::int64_t> slots;
  std::int64_t workspace = absent, rng_state = absent;
  bool on_stream = false;
};

using Table = base::LruCache<Entry>;

Table& table() {
  static auto& table = *new Table(1024);  // never destroyed: compiled programs may run until the process exits
  return table;
}

/// The planned Call of a compiled program.
std::shared_ptr<const Entry> entry_of(std::string_view text) {
  if (auto entry = table().find(text)) return entry;
  const nb::gil_scoped_acquire gil;
  for (int attempt = 0; attempt < 3; ++attempt) {  // other threads may evict it meanwhile
    nb::module_::import_("foveal.jax.foreign").attr("restored")(nb::str(text.data(), text.size()));
    if (auto entry = table().find(text)) return entry;
  }
  throw Error(ErrorCode::device, "foveal: the table of planned calls has no room: too many are planned at once");
}

void* error(const xla::Api* api, int code, const std::string& message) {
  xla::ErrorCreateArgs args{sizeof(xla::ErrorCreateArgs), nullptr, message.c_str(), code};
  return api->error_create(&args);
}

/// XLA aligns its buffers less than workspaces require, so they have room for this.
void* aligned(void* workspace) {
  return reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(workspace) + workspace_alignment - 1) / workspace_alignment *
                                 workspace_alignment);
}

const xla::Buffer* buffer_of(const xla::CallFrame& frame, std::int64_t slot) {
  if (slot == absent) return nullptr;
  const xla::Buffers& buffers = slot >= 0 ? frame.args : frame.rets;
  return static_cast<const xla::Buffer*>(buffers.items[slot >= 0 ? slot : ~slot]);
}

void* run(const xla::CallFrame& frame) {
  std::string_view text;
  for (std::int64_t i = 0; i < frame.attrs.size; ++i) {
    const xla::ByteSpan& name = *frame.attrs.names[i];
    if (std::string_view(name.data, name.size) == "call" && frame.attrs.types[i] == xla::attr_string) {
      const auto& span = *static_cast<const xla::ByteSpan*>(frame.attrs.items[i]);
      text = {span.data, span.size};
    }
  }
  if (text.empty()) return error(frame.api, 9, "foveal: this compiled program was made by another version of foveal; compile it again");
  try {
    const std::shared_ptr<const Entry> entry = entry_of(text);
    const auto address = [&frame](std::int64_t slot) { return buffer_of(frame, slot) == nullptr ? nullptr : buffer_of(frame, slot)->data; };
    Stream stream;
    if (entry->on_stream) {
      xla::StreamGetArgs args{sizeof(xla::StreamGetArgs), nullptr, frame.context, nullptr};
      if (void* failed = frame.api->stream_get(&args)) return failed;
      stream.handle = args.stream;
    }
    if (const xla::Buffer* given = buffer_of(frame, entry->workspace)) {
      const std::size_t wanted = entry->call->plan().workspace_bytes() + workspace_alignment;
      if (given->rank != 1 || static_cast<std::size_t>(given->dims[0]) < wanted)
        throw Error(ErrorCode::invalid_argument, "this compiled program was made by another version of foveal; compile it again");
    }
    std::vector<TensorView> tensors = entry->call->tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].data = address(entry->slots[i]);
    DropoutRng rng;
    if (entry->rng_state != absent) {
      rng.state = contiguous_view(DType::i64, tensors[slots::q].device, rng_words.data(), 1);
      rng.state.data = address(entry->rng_state);
    }
    entry->call->run(tensors, rng, aligned(address(entry->workspace)), stream);
  } catch (const Error& e) {
    return error(frame.api, e.code() == ErrorCode::invalid_argument ? 3 : 13, (std::string("foveal.jax: ") + e.what()).c_str());
  } catch (nb::python_error& e) {  // of planning again
    const nb::gil_scoped_acquire gil;
    return error(frame.api, 13, e.what());
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
      [](std::string text, std::shared_ptr<Call> call, std::vector<std::int64_t> slots, std::int64_t workspace, std::int64_t rng_state,
         bool on_stream) {
        table().insert(std::move(text),
                       std::make_shared<const Entry>(Entry{std::move(call), std::move(slots), workspace, rng_state, on_stream}));
      },
      nb::arg("text"), nb::arg("call"), nb::arg("slots"), nb::arg("workspace"), nb::arg("rng_state"), nb::arg("on_stream"),
      "Keeps a planned call for compiled programs that hold this text.");
  m.def(
      "xla_registered", [] { return table().size(); }, "How many planned calls are kept.");
  m.attr("xla_absent") = absent;
  m.attr("workspace_alignment") = workspace_alignment;
}

}  // namespace foveal::python
