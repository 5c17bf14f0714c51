// The checks of every run: tensors match the plan and have data, and no output overlaps another tensor.
#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/dtype.h"
#include "base/named.h"
#include "problem/call.h"
#include "problem/overlap.h"
#include "problem/pages.h"

namespace foveal::problem {
namespace {

std::string text_of(const TensorSpec& spec) {
  if (!spec.present) return "absent";
  TensorView view;
  view.dtype = spec.dtype, view.rank = spec.rank, view.sizes = spec.sizes;
  return view.describe() + " with strides " + base::shape_text(spec.strides.data(), spec.rank);
}

using base::gradient_of, base::Named;

void check_data(Named at, const TensorView& view) {
  FOVEAL_CHECK(view.data != nullptr, at.what, at.name, ": data is null");
  FOVEAL_CHECK(reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype) == 0, at.what, at.name, ": address is not a multiple of ",
               size_of(view.dtype), ", the size of ", to_string(view.dtype));
}

/// Compares a view, in its logical form, with its spec.
void take(const Problem& problem, Named at, const TensorSpec& spec, const TensorView& given, bool packed, TensorView& view) {
  view = logical_view(given, packed);
  const TensorSpec found{
      .present = true, .dtype = view.dtype, .rank = view.rank, .sizes = view.sizes, .strides = view.strides, .aligned = spec.aligned};
  const bool absent = given.data == nullptr && given.rank == 0;
  FOVEAL_CHECK(found == spec, at.what, at.name, ": ", absent ? "absent" : text_of(found), "; the plan expects ", text_of(spec));
  FOVEAL_CHECK(view.device == problem.device, at.what, at.name, ": on another device than the plan's");
  check_data(at, view);
}

const TensorView& binding_of(const std::vector<ParamBinding>& bindings, const std::string& name, std::size_t hint, const char* list) {
  if (hint < bindings.size() && bindings[hint].param.present() && bindings[hint].param.name() == name) return bindings[hint].tensor;
  const auto found = std::find_if(bindings.begin(), bindings.end(),
                                  [&](const ParamBinding& binding) { return binding.param.present() && binding.param.name() == name; });
  FOVEAL_CHECK(found != bindings.end(), "parameter ", name, ": missing in ", list, "; the plan expects it");
  return found->tensor;
}

void take_params(const Problem& problem, const Call& call, Buffers& buffers) {
  FOVEAL_CHECK(call.params->size() == problem.params.size(), "params: ", call.params->size(), " bindings; the plan expects ",
               problem.params.size());
  std::size_t gradients = 0;
  buffers.params.resize(problem.params.size());
  buffers.dparams.resize(problem.params.size());
  for (std::size_t i = 0; i < problem.params.size(); ++i) {
    const ParamSpec& spec = problem.params[i];
    const std::string& name = spec.param.name();
    take(problem, {name.c_str()}, spec.tensor, binding_of(*call.params, name, i, "params"), false, buffers.params[i]);
    if (spec.gradient.present)
      take(problem, gradient_of(name.c_str()), spec.gradient, binding_of(*call.dparams, name, gradients++, "dparams"), false,
           buffers.dparams[i]);
  }
  const std::size_t given = call.dparams == nullptr ? 0 : call.dparams->size();
  FOVEAL_CHECK(given == gradients, "dparams: ", given, " bindings; the plan expects ", gradients);
}

std::int64_t checked_lengths(const char* name, const TensorView& cu, std::int64_t total, std::int64_t most) {
  const std::int64_t batch = cu.sizes[0] - 1;
  std::int64_t before = base::load_integer(cu.data, cu.dtype, 0);
  FOVEAL_CHECK(before == 0, "cu_seqlens_", name, ": starts with ", before, "; expected 0");
  std::int64_t longest = 0;
  for (std::int64_t i = 1; i <= batch; ++i) {
    const std::int64_t here = base::load_integer(cu.data, cu.dtype, i);
    FOVEAL_CHECK(here >= before, "cu_seqlens_", name, ": decreases from ", before, " to ", here, " at ", i);
    longest = std::max(longest, here - before);
    before = here;
  }
  FOVEAL_CHECK(before == total, "cu_seqlens_", name, ": ends with ", before, "; expected the total ", total);
  FOVEAL_CHECK(most == 0 || longest <= most, "max_seqlen_", name, ": ", most, " is less than the longest sequence, ", longest);
  return longest;
}

/// Row ranges are inside the tensors, disjoint and ascending; positions are inside their sequence.
void check_segments(const Problem& p, const TensorView& table) {
  static constexpr std::int64_t most = std::int64_t{1} << 30;
  const auto* rows = static_cast<const std::int64_t*>(table.data);
  std::int64_t q_end = 0, kv_end = 0;
  const auto side = [](std::int64_t part, const char* name, std::int64_t begin, std::int64_t count, std::int64_t total, std::int64_t first,
                       std::int64_t length, std::int64_t& end) {
    FOVEAL_CHECK(count >= 0 && begin >= end && begin <= total && count <= total - begin, "segments.table: part ", part, " has ", count,
                 " rows of ", name, " from ", begin, "; expected rows after ", end, " and up to ", total);
    FOVEAL_CHECK(first >= 0 && length >= 0 && length <= most && first <= length - count, "segments.table: part ", part, " has ", count,
                 " positions of ", name, " from ", first, "; expected 0 to its length ", length, ", which is at most ", most);
    end = begin + count;
  };
  for (std::int64_t i = 0; i < p.batch; ++i, rows += 9) {
    FOVEAL_CHECK(rows[4] >= 0 && rows[4] < p.sequences, "segments.table: part ", i, " is of sequence ", rows[4], "; expected 0 to ",
                 p.sequences - 1);
    side(i, "q", rows[0], rows[1], p.total_q, rows[5], rows[7], q_end);
    side(i, "kv", rows[2], rows[3], p.total_kv, rows[6], rows[8], kv_end);
  }
}

void take_segments(const Problem& problem, const Call& call, Buffers& buffers) {
  FOVEAL_CHECK(problem.segments == (call.segments != nullptr),
               "segments: ", call.segments ? "given; the plan expects none" : "absent; the plan expects them");
  if (call.segments == nullptr) return;
  const TensorView& table = call.segments->table;
  FOVEAL_CHECK(table.rank == 2 && table.sizes[0] == problem.batch && table.sizes[1] == 9 && table.dtype == DType::i64 &&
                   table.strides[0] == 9 && table.strides[1] == 1 && table.data != nullptr,
               "segments.table: ", table.describe(), "; the plan expects i64[", problem.batch, ", 9], contiguous");
  check_segments(problem, table);
  buffers.segments = table;
}

void check_forms(const Problem& problem, const Call& call) {
  FOVEAL_CHECK((problem.varlen && !problem.segments) == (call.varlen != nullptr),
               "varlen: ", call.varlen ? "given; the plan expects none" : "absent; the plan expects it");
  FOVEAL_CHECK(problem.paged == (call.paged != nullptr),
               "block_table: ", call.paged ? "given; the plan expects none" : "absent; the plan expects it");
}

}  // namespace

void check_pages(const Problem& p, const TensorView& table, const TensorView& lengths) {
  const auto* pages = static_cast<const std::int32_t*>(table.data);
  for (std::int64_t i = 0; i < p.batch; ++i) {
    const std::int64_t length = base::load_integer(lengths.data, lengths.dtype, i * lengths.strides[0]);
    FOVEAL_CHECK(length >= 0 && length <= p.seqlen_kv, "seqlens_kv: ", length, " of sequence ", i, "; expected 0 to ", p.seqlen_kv,
                 p.seqlen_kv < table.sizes[1] * p.page_size() ? ", max_seqlen_kv" : ", what a row of block_table holds");
    for (std::int64_t n = 0; n * p.page_size() < length; ++n) {
      const std::int32_t page = pages[i * table.strides[0] + n * table.strides[1]];
      FOVEAL_CHECK(page >= 0 && page < p.pages(), "block_table: page ", page, " at [", i, ", ", n, "]; expected 0 to ", p.pages() - 1,
                   " for the ", length, " keys of this sequence");
    }
  }
}

namespace {

void check_lengths(const Problem& problem, const Call& call, Buffers& buffers) {
  if (problem.segments || call.segments != nullptr) return take_segments(problem, call, buffers);
  if (problem.device.kind != DeviceKind::cpu) return;  // a run must not wait for a device
  if (problem.varlen) checked_lengths("q", buffers.cu_seqlens_q, problem.total_q, problem.seqlen_q);
  if (problem.varlen && !problem.paged) checked_lengths("kv", buffers.cu_seqlens_kv, problem.total_kv, problem.seqlen_kv);
  if (problem.paged) check_pages(problem, buffers.block_table, buffers.seqlens_kv);
}

/// The ranges cover all keys with existing rows.
void check_key_ranges(const Problem& p, const Buffers& buffers) {
  const Part& part = buffers.part;
  FOVEAL_CHECK(part.spread_keys == p.seqlen_kv, "part.spread_keys: ", part.spread_keys, "; the plan expects ", p.seqlen_kv);
  FOVEAL_CHECK(part.key_range_count >= 1 && part.key_range_count <= Part::most_key_ranges, "part.key_range_count: ", part.key_range_count,
               "; expected 1 to ", Part::most_key_ranges);
  for (const auto& [name, received, own] : {std::tuple("k", &part.k_received, &buffers.k), {"v", &part.v_received, &buffers.v}}) {
    if (!received->present()) continue;
    FOVEAL_CHECK(received->rank == 4 && received->dtype == own->dtype && received->device == own->device &&
                     received->sizes[0] == own->sizes[0] && received->sizes[2] == own->sizes[2] && received->sizes[3] == own->sizes[3] &&
                     received->strides[3] == 1,
                 "part.", name, "_received: ", received->describe(), "; expected what ", name, " is, in other rows: ", own->describe());
  }
  FOVEAL_CHECK(part.k_received.present() == part.v_received.present() && part.k_received.sizes[1] == part.v_received.sizes[1],
               "part.k_received, part.v_received: of different rows; expected the same of both");
  for (std::size_t i = 0; i < part.key_range_count; ++i) {
    const Part::KeyRange& s = part.key_ranges[i];
    const std::int64_t end = i + 1 < part.key_range_count ? part.key_ranges[i + 1].first : p.seqlen_kv;
    const TensorView& memory = s.received ? part.k_received : buffers.k;
    FOVEAL_CHECK((i > 0 || s.first == 0) && s.first % Part::key_range_unit == 0 && end > s.first && s.row >= 0 && memory.present() &&
                     end - s.first <= memory.sizes[1] - s.row && (s.word == nullptr || (s.received && part.failed != nullptr)),
                 "part.key_ranges: key range ", i, " of keys ", s.first, " to ", end, " in rows from ", s.row,
                 "; expected ascending multiples of ", Part::key_range_unit, ", from 0 on, in rows that there are");
    FOVEAL_CHECK(s.slices >= 1 && s.slices <= 32 && (p.heads_kv >> (s.slices - 1)) >= 1, "part.key_ranges: key range ", i, " in ", s.slices,
                 " slices of ", p.heads_kv, " kv heads; expected one head or more in the first slice");
  }
}

void check_kept(const Problem& p, const Part::Kept& kept) {
  const std::int64_t end = kept.first + p.seqlen_q;
  FOVEAL_CHECK(kept.memory != nullptr && reinterpret_cast<std::uintptr_t>(kept.memory) % 256 == 0,
               "part.kept.memory: null, or no multiple of 256");
  FOVEAL_CHECK(kept.first >= 0 && kept.first % 128 == 0 && end <= kept.rows && (end % 128 == 0 || end == kept.rows), "part.kept: rows ",
               kept.first, " to ", end, " of ", kept.rows, "; expected them from a multiple of 128 on, to one or to the end");
  FOVEAL_CHECK((!kept.begins && !kept.ends) || p.seqlen_q == kept.rows, "part.kept: rows ", kept.first, " to ", end, " of ", kept.rows,
               " begin or end; expected all of them");
  FOVEAL_CHECK(
      kept.number < Part::most_kept && kept.count <= Part::most_kept && ((!kept.multiplies && !kept.measures) || kept.number < kept.count),
      "part.kept: number ", kept.number, ", count ", kept.count, "; expected a number below the count, which is ", Part::most_kept,
      " at most");
  FOVEAL_CHECK(kept.stream < 2, "part.kept: stream ", kept.stream, "; expected 0 or 1");
}

void take_part(const Problem& problem, const Call& call, Buffers& buffers) {
  FOVEAL_CHECK(problem.part == (call.part != nullptr),
               "part: ", call.part ? "given; the plan expects none" : "absent; the plan expects it");
  if (call.part == nullptr) return;
  buffers.part = *call.part;
  if (problem.spread) check_key_ranges(problem, buffers);
  if (problem.keeps_rows) check_kept(problem, buffers.part.kept);
}

void take_rng(const Problem& problem, const Call& call, Buffers& buffers) {
  buffers.rng = {};
  if (problem.attention.dropout_p == 0) return;
  buffers.rng = *call.rng;
  TensorView& state = buffers.rng.state;
  if (!state.present()) return;
  FOVEAL_CHECK(state.dtype == DType::i64 && state.rank == 1 && state.sizes[0] == 2 && state.strides[0] == 1,
               "rng.state: ", state.describe(), " with strides ", base::shape_text(state.strides.data(), state.rank),
               "; expected i64[2], contiguous: the bits of {seed, offset}");
  FOVEAL_CHECK(state.device == problem.device, "rng.state: on another device than the plan's");
  FOVEAL_CHECK(state.data != nullptr, "rng.state: data is null");
  FOVEAL_CHECK(reinterpret_cast<std::uintptr_t>(state.data) % sizeof(std::int64_t) == 0, "rng.state: address is not a multiple of ",
               sizeof(std::int64_t));
}

/// Reads a state in host memory, once it is known that outputs do not overlap it; backends then see numbers only.
void read_rng(const Problem& problem, Buffers& buffers) {
  DropoutRng& rng = buffers.rng;
  if (!rng.state.present() || problem.device.kind != DeviceKind::cpu) return;
  const auto* words = static_cast<const std::int64_t*>(rng.state.data);
  rng = {.seed = static_cast<std::uint64_t>(words[0]), .offset = static_cast<std::uint64_t>(words[1])};
}

/// see(named, view, is_output) for every tensor that is present.
template <class See>
void each_tensor(const Problem& problem, const Buffers& buffers, See&& see) {
  for (const Role& role : roles)
    if ((problem.*role.spec).present) see(Named{role.name}, buffers.*role.view, role.output(problem.pass));
  for (std::size_t i = 0; i < problem.params.size(); ++i) {
    const std::string& name = problem.params[i].param.name();
    see(Named{name.c_str()}, buffers.params[i], false);
    if (problem.params[i].gradient.present) see(gradient_of(name.c_str()), buffers.dparams[i], true);
  }
  if (problem.segments) see(Named{"segments.table"}, buffers.segments, false);
  if (buffers.rng.state.present()) see(Named{"rng.state"}, buffers.rng.state, false);
}

/// each(see) must call see(named, view, is_output) with the same views every time.
template <class Each>
void check_overlaps(const Each& each) {
  each([&](Named output, const TensorView& a, bool a_is_output) {
    if (!a_is_output) return;
    const ByteRange bytes_of_a = bytes_of(a);
    each([&](Named other, const TensorView& b, bool) {
      if (&a != &b)
        FOVEAL_CHECK(!overlap(a, bytes_of_a, b), output.what, output.name, ": overlaps ", other.what, other.name,
                     " in memory; expected a place of its own");
    });
  });
}

void gather(const Problem& problem, const Call& call, Buffers& buffers) {
  try {
    FOVEAL_CHECK(problem.pass == call.pass, "run: ", to_string(call.pass), " arguments; the plan is for ", to_string(problem.pass));
    check_forms(problem, call);
    for (const Role& role : roles) {
      const TensorView* given = call.*role.given;
      const TensorSpec& spec = problem.*role.spec;
      if (spec.present) {
        FOVEAL_CHECK(given->present(), role.name, ": absent; the plan expects ", text_of(spec));
        take(problem, {role.name}, spec, *given, !role.integers() && call.tokens_of(role) == Tokens::packed, buffers.*role.view);
      } else {
        FOVEAL_CHECK(given == nullptr || !given->present(), role.name, ": given; the plan expects none");
        buffers.*role.view = TensorView{};
      }
    }
    take_params(problem, call, buffers);
    check_lengths(problem, call, buffers);
    take_part(problem, call, buffers);
    take_rng(problem, call, buffers);
    check_overlaps([&](const auto& see) { each_tensor(problem, buffers, see); });
    read_rng(problem, buffers);
  } catch (const Error& error) {
    base::fail(error.code(), error.what(), " [", headline(problem), "]");
  }
}

void check_places(const Call& call) {
  struct Given {
    Named named;
    TensorView view;
    bool output;
  };
  std::vector<Given> all;
  const auto add = [&](Named named, const TensorView& view, bool output) {
    const auto* sizes = view.sizes.data();
    if (view.data == nullptr || std::any_of(sizes, sizes + view.rank, [](std::int64_t size) { return size < 1; })) return;
    check_reach(named.name, view);
    all.push_back({named, logical_view(view, false), output});
  };
  for (const Role& role : roles)
    if (const TensorView* given = call.*role.given; given != nullptr && given->present()) add({role.name}, *given, role.output(call.pass));
  for (const ParamBinding& param : *call.params)
    if (param.param.present()) add({param.param.name().c_str()}, param.tensor, false);
  if (call.dparams != nullptr)
    for (const ParamBinding& param : *call.dparams)
      if (param.param.present()) add(gradient_of(param.param.name().c_str()), param.tensor, true);
  add({"rng.state"}, call.rng->state, false);
  for (const Given& given : all) check_data(given.named, given.view);
  check_overlaps([&](const auto& see) {
    for (const Given& given : all) see(given.named, given.view, given.output);
  });
}

}  // namespace

void check_places(const ForwardInputs& inputs, const ForwardOutputs& outputs) { check_places(call_of(inputs, outputs)); }
void check_places(const BackwardInputs& inputs, const BackwardOutputs& outputs) { check_places(call_of(inputs, outputs)); }

void fill_buffers(const Problem& problem, const ForwardInputs& inputs, const ForwardOutputs& outputs, Buffers& buffers) {
  gather(problem, call_of(inputs, outputs), buffers);
}

void fill_buffers(const Problem& problem, const BackwardInputs& inputs, const BackwardOutputs& outputs, Buffers& buffers) {
  gather(problem, call_of(inputs, outputs), buffers);
}

void check_workspace(const Problem& problem, const Buffers& buffers, void* workspace, std::size_t bytes) {
  FOVEAL_CHECK(workspace != nullptr || bytes == 0, "workspace: null; expected ", bytes, " bytes");
  FOVEAL_CHECK(reinterpret_cast<std::uintptr_t>(workspace) % 256 == 0, "workspace: address is not a multiple of 256");
  if (bytes == 0) return;
  TensorView scratch;
  scratch.data = workspace, scratch.dtype = DType::u8;
  scratch.rank = 1, scratch.sizes[0] = static_cast<std::int64_t>(bytes), scratch.strides[0] = 1;
  const ByteRange bytes_of_scratch = bytes_of(scratch);
  each_tensor(problem, buffers, [&](Named tensor, const TensorView& view, bool) {
    FOVEAL_CHECK(!overlap(scratch, bytes_of_scratch, view), "workspace: its ", bytes, " bytes overlap ", tensor.what, tensor.name,
                 " in memory; expected a place of their own");
  });
}

}  // namespace foveal::problem
