// The C interface with structs that are valid, nearly valid and wild: an error or a result, never a crash, never a byte beside a tensor.
// Pointers are the caller's promise: where a tensor reaches beyond its memory the call is planned, but not run.
#include <algorithm>
#include <array>
#include <utility>

#include "bytes.h"
#include "foveal/foveal_c.h"
#include "workspace.h"

namespace {

using foveal::fuzz::Bytes;

constexpr std::size_t arena_bytes = 1 << 15, margin = 256;
constexpr unsigned char untouched = 0xa5, page_size = 16;

/// Memory of one tensor between two margins that nobody may write.
struct Arena {
  alignas(256) std::array<unsigned char, arena_bytes + 2 * margin> bytes;

  void clear() { bytes.fill(untouched); }
  void* data() { return bytes.data() + margin; }
  void check() const {
    static_assert(untouched == 0xa5 && margin % sizeof(std::uint64_t) == 0);
    std::uint64_t changed = 0;
    for (std::size_t i = 0; i < margin; i += sizeof changed)
      for (const std::size_t at : {i, margin + arena_bytes + i}) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at, sizeof word);
        changed |= word ^ 0xa5a5a5a5a5a5a5a5;
      }
    if (changed != 0) foveal::fuzz::found("memory was written beside a tensor");
  }
};

constexpr std::size_t size_of[] = {0, 4, 2, 2, 8, 4, 2, 1, 1, 1, 8};

bool fits(const foveal_tensor& tensor, const Arena& arena) {
  if (tensor.dtype < 1 || tensor.dtype > FOVEAL_F64 || tensor.rank < 0 || tensor.rank > FOVEAL_MAX_RANK) return true;  // refused
  long double low = 0, high = 0;
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.sizes[d] <= 0) return true;  // nothing is there
    const long double reach = static_cast<long double>(tensor.sizes[d] - 1) * tensor.strides[d];
    (reach < 0 ? low : high) += reach;
  }
  const auto width = static_cast<long double>(size_of[tensor.dtype]);
  const auto first = reinterpret_cast<std::intptr_t>(tensor.data) - reinterpret_cast<std::intptr_t>(arena.bytes.data() + margin);
  return first + low * width >= 0 && first + (high + 1) * width <= static_cast<long double>(arena_bytes);
}

enum Slot {
  q,
  k,
  v,
  out,
  lse,
  dout,
  dlse,
  dq,
  dk,
  dv,
  cu_q,
  cu_kv,
  table,
  seqlens,
  state,
  tables,
  table0 = tables,
  table1,
  gradient0,
  gradient1,
  slot_count
};

struct Case {
  std::array<foveal_tensor, slot_count> tensors{};
  std::array<foveal_param, 2> params{};
  std::array<std::string, 8> texts;  ///< of disturbances: a struct points to each
  std::size_t text_count = 0;
  foveal_attention attention{};
  foveal_call call{};
  foveal_options options{};
};

std::array<Arena, slot_count>& arenas() {
  static std::array<Arena, slot_count> all;
  return all;
}

/// The arena that an address lies in; null for none.
Arena* arena_of(const void* data) {
  const auto at = reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(arenas().data());
  return at < sizeof(Arena) * slot_count ? &arenas()[at / sizeof(Arena)] : nullptr;
}

void set(Case& c, int slot, int32_t dtype, std::initializer_list<int64_t> sizes) {
  foveal_contiguous(&c.tensors[static_cast<std::size_t>(slot)], arenas()[static_cast<std::size_t>(slot)].data(), dtype,
                    static_cast<int32_t>(sizes.size()), sizes.begin());
}

template <class Struct>
Struct sized() {
  Struct made{};
  made.struct_size = sizeof made;
  return made;
}

const char* const masks[] = {"kv_idx <= q_idx", "ids[batch, kv_idx % 16] == ids[batch, q_idx % 16]", "q_idx - kv_idx < 3", "head > kv_idx",
                             "true"};
const char* const scores[] = {"score + rel[head, kv_idx - q_idx + 4]", "tanh(score / 3) * 3", "score * rel[head, 0]",
                              "where(kv_idx == 2, -inf, score)", "score - 0.5 * abs(q_idx - kv_idx)"};

/// A call that is right.
void make(Case& c, Bytes& bytes) {
  const int64_t heads_kv = 1 + bytes.pick(2), heads_q = heads_kv * (1 + bytes.pick(2)), batch = 1 + bytes.pick(2);
  // Mostly a few tokens, so that more inputs a second meet the same code; the longest need a second block and a second page.
  constexpr int64_t tokens[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 7, 8, 16, 17};
  const int64_t seqlen_q = bytes.one_of(tokens), seqlen_kv = bytes.one_of(tokens);
  const int64_t dim = bytes.one_of({8, 1, 16, 33}), dim_v = bytes.once_in(4) ? 24 : dim;
  const int32_t dtype = bytes.one_of({FOVEAL_F32, FOVEAL_BF16, FOVEAL_F16, FOVEAL_F64}),
                wide = dtype == FOVEAL_F64 ? FOVEAL_F64 : FOVEAL_F32;
  const bool packed = bytes.once_in(4), paged = bytes.once_in(4);
  const auto tensor = [&](int slot, int64_t seqlen, int64_t heads, int64_t size) {
    packed ? set(c, slot, dtype, {batch * seqlen, heads, size}) : set(c, slot, dtype, {batch, seqlen, heads, size});
  };
  for (const int slot : {q, dq}) tensor(slot, seqlen_q, heads_q, dim);
  for (const int slot : {k, dk}) tensor(slot, seqlen_kv, heads_kv, dim);
  for (const int slot : {v, dv}) tensor(slot, seqlen_kv, heads_kv, dim_v);
  for (const int slot : {out, dout}) tensor(slot, seqlen_q, heads_q, dim_v);
  for (const int slot : {lse, dlse})
    packed ? set(c, slot, wide, {heads_q, batch * seqlen_q}) : set(c, slot, wide, {batch, heads_q, seqlen_q});
  for (const int slot : {cu_q, cu_kv}) {
    set(c, slot, FOVEAL_I32, {batch + 1});
    auto* lengths = static_cast<int32_t*>(arenas()[static_cast<std::size_t>(slot)].data());
    for (int64_t b = 0; b <= batch; ++b) lengths[b] = static_cast<int32_t>(b * (slot == cu_q ? seqlen_q : seqlen_kv));
    if (bytes.once_in(8)) lengths[bytes.pick(3)] = static_cast<int32_t>(bytes.wild());
  }
  if (paged) {
    for (const int slot : {k, dk}) set(c, slot, dtype, {3, page_size, heads_kv, dim});
    for (const int slot : {v, dv}) set(c, slot, dtype, {3, page_size, heads_kv, dim_v});
    set(c, table, FOVEAL_I32, {batch, 2}), set(c, seqlens, FOVEAL_I32, {batch});
    auto* pages = static_cast<int32_t*>(arenas()[table].data());
    auto* lengths = static_cast<int32_t*>(arenas()[seqlens].data());
    for (int64_t i = 0; i < 2 * batch; ++i) pages[i] = static_cast<int32_t>(bytes.once_in(16) ? bytes.wild() : bytes.pick(3));
    for (int64_t b = 0; b < batch; ++b) lengths[b] = static_cast<int32_t>(bytes.once_in(16) ? bytes.wild() : bytes.pick(2 * page_size + 1));
  }
  set(c, state, FOVEAL_I64, {2});
  set(c, table0, wide, {4, 9}), set(c, gradient0, wide, {4, 9});
  set(c, table1, FOVEAL_I32, {2, 16});
  c.params = {foveal_param{"rel: real[4, 9]", &c.tensors[table0], nullptr},
              foveal_param{"ids: integer[2, 16]", &c.tensors[table1], nullptr}};

  c.call = sized<foveal_call>();
  c.call.pass = bytes.once_in(2) ? FOVEAL_BACKWARD : FOVEAL_FORWARD;
  c.call.param_count = static_cast<int32_t>(bytes.pick(3)), c.call.params = c.params.data();
  c.call.q = &c.tensors[q], c.call.k = &c.tensors[k], c.call.v = &c.tensors[v], c.call.out = &c.tensors[out];
  if (c.call.pass == FOVEAL_BACKWARD || bytes.once_in(2)) c.call.lse = &c.tensors[lse];
  if (c.call.pass == FOVEAL_BACKWARD) {
    c.call.dout = &c.tensors[dout], c.call.dq = &c.tensors[dq], c.call.dk = &c.tensors[dk], c.call.dv = &c.tensors[dv];
    if (bytes.once_in(3)) c.call.dlse = &c.tensors[dlse];
    if (bytes.once_in(2)) c.params[0].gradient = &c.tensors[gradient0];
  }
  if (paged) {
    c.call.block_table = &c.tensors[table], c.call.seqlens_kv = &c.tensors[seqlens];
    if (packed) c.call.cu_seqlens_q = &c.tensors[cu_q];
  } else if (packed) {
    c.call.cu_seqlens_q = &c.tensors[cu_q], c.call.cu_seqlens_kv = &c.tensors[cu_kv];
    if (bytes.once_in(2)) c.call.max_seqlen_q = seqlen_q, c.call.max_seqlen_kv = seqlen_kv;
  }
  c.attention = sized<foveal_attention>();
  if (c.call.param_count > 0 && bytes.once_in(2)) c.attention.score_mod = bytes.one_of(scores);
  if (c.call.param_count > 1 && bytes.once_in(2)) c.attention.mask = bytes.one_of(masks);
  if (bytes.once_in(4)) c.attention.dropout_p = 0.25, c.call.dropout_seed = 7;
  if (bytes.once_in(16)) c.call.dropout_state = &c.tensors[state];
  c.attention.checked = bytes.once_in(4);
  c.attention.determinism = bytes.once_in(4), c.attention.backward = static_cast<int32_t>(bytes.pick(4));
  if (c.call.pass == FOVEAL_BACKWARD) c.attention.accumulate = bytes.once_in(4);
  c.options = sized<foveal_options>();
  c.options.threads = 1;
  c.options.backend = bytes.one_of<const char*>({nullptr, nullptr, "cpu", "reference"});
}

/// One field is something else.
void disturb(Case& c, Bytes& bytes) {
  foveal_tensor& tensor = c.tensors[bytes.pick(slot_count)];
  const foveal_tensor* const any = &c.tensors[bytes.pick(slot_count)];
  const foveal_tensor* const given = bytes.once_in(2) ? nullptr : any;
  const unsigned at = bytes.pick(FOVEAL_MAX_RANK);
  const auto words = [&] {
    std::string& text = c.texts.at(c.text_count++);
    return text = bytes.text(64), text.c_str();
  };
  const auto number = [&] { return static_cast<int32_t>(bytes.once_in(2) ? bytes.wild() : bytes.pick(12)); };
  switch (bytes.pick(30)) {
    case 0:
      return void(tensor.data = nullptr);
    case 1:
      if (tensor.data != nullptr) tensor.data = static_cast<char*>(tensor.data) + bytes.pick(17);
      return;
    case 2:
      return void(tensor.dtype = number());
    case 3:
      return void(tensor.device_kind = number());
    case 4:
      return void(tensor.device_index = number());
    case 5:
      return void(tensor.rank = number());
    case 6:
    case 7:
      return void(tensor.sizes[at] = bytes.wild());
    case 8:
    case 9:
      return void(tensor.strides[at] = bytes.wild());
    case 10:
      return void(tensor.strides[at] = static_cast<int8_t>(bytes.pick(256)));
    case 11:
      return void(tensor = *any);
    case 12:
      return void(c.call.q = given);
    case 13:
      return void((bytes.once_in(2) ? c.call.k : c.call.v) = given);
    case 14:
      return void((bytes.once_in(2) ? c.call.out : c.call.lse) = given);
    case 15:
      return void((bytes.once_in(2) ? c.call.dout : c.call.dlse) = given);
    case 16:
      return void((bytes.once_in(2) ? c.call.dq : bytes.once_in(2) ? c.call.dk : c.call.dv) = given);
    case 17:
      if (bytes.once_in(2)) return void((bytes.once_in(2) ? c.call.block_table : c.call.seqlens_kv) = given);
      return void((bytes.once_in(2) ? c.call.cu_seqlens_q : c.call.cu_seqlens_kv) = given);
    case 18:
      return void((bytes.once_in(2) ? c.call.max_seqlen_q : c.call.max_seqlen_kv) = bytes.wild());
    case 19:
      return void(c.call.dropout_state = given);
    case 20:
      return void(c.params[bytes.pick(2)].tensor = given);
    case 21:
      return void(c.params[bytes.pick(2)].gradient = given);
    case 22:
      return void(c.params[bytes.pick(2)].declaration = bytes.once_in(4) ? nullptr : words());
    case 23:
      return void(bytes.once_in(2) ? c.attention.score_mod = words() : c.attention.mask = words());
    case 24:
      return void(c.attention.sink = bytes.once_in(2) ? "rel" : words());
    case 25:
      return void((bytes.once_in(2) ? c.attention.scale : c.attention.dropout_p) = bytes.take<double>());
    case 26:
      return void((bytes.once_in(2) ? c.attention.q_offset : c.attention.kv_offset) = bytes.wild());
    case 27:
      switch (bytes.pick(4)) {
        case 0:
          return void(c.attention.determinism = number());
        case 1:
          return void(c.attention.backward = number());
        case 2:
          return void(c.attention.accumulate = number());
        default:
          return void(c.call.pass = number());
      }
    case 28: {  // sizes that were never a version's; what is read of a struct that is smaller must be refused all the same
      const auto size = static_cast<std::size_t>(bytes.once_in(2) ? bytes.wild() : bytes.pick(255));
      return void((bytes.once_in(2) ? c.call.struct_size : bytes.once_in(2) ? c.attention.struct_size : c.options.struct_size) = size);
    }
    default:
      if (bytes.once_in(2)) {
        const int32_t threads = number();  // few: a machine of 32 cores starts as many, and AddressSanitizer keeps 3 GB of them
        return void(c.options.threads = threads > 4 && threads <= 4096 ? 4 : threads);
      }
      c.call.param_count = static_cast<int32_t>(bytes.pick(4)) - 1;
      if (c.call.param_count > 2) c.call.param_count = 2;
  }
}

long double elements(const foveal_tensor& tensor) {
  long double count = 1;
  for (int d = 0; d < tensor.rank && d < FOVEAL_MAX_RANK; ++d) count *= static_cast<long double>(tensor.sizes[d]);
  return count;
}

/// Strides of zero make large tensors of small memory, which the same code would take seconds for; and the reference goes pair by pair.
bool quick(const foveal_call& call, const foveal_options& options) {
  const bool reference = options.backend != nullptr && std::string_view(options.backend) == "reference";
  const long double most_products = reference ? 1 << 16 : 1 << 19;
  if (call.q == nullptr || call.k == nullptr || call.q->rank < 1 || call.q->rank > FOVEAL_MAX_RANK) return true;  // refused
  const auto head_dim = static_cast<long double>(call.q->sizes[call.q->rank - 1]);
  long double products = elements(*call.q) * elements(*call.k);
  if (call.block_table != nullptr && call.k->rank > 0 && call.k->sizes[0] > 0)  // keys of the table's pages, not of the pool's
    products *= std::max(1.0L, elements(*call.block_table) / static_cast<long double>(call.k->sizes[0]));
  return products <= most_products * head_dim;
}

constexpr long double most_elements = 1 << 15;

/// Whether all of a tensor lies in its arena, so that it may be read.
bool in_memory(const foveal_tensor* tensor) {
  if (tensor == nullptr || tensor->data == nullptr) return true;
  const Arena* arena = arena_of(tensor->data);
  return arena != nullptr && fits(*tensor, *arena) && tensor->device_kind == FOVEAL_CPU && elements(*tensor) <= most_elements;
}

bool runs(const Case& c) {
  for (const foveal_tensor* tensor :
       {c.call.q, c.call.k, c.call.v, c.call.out, c.call.lse, c.call.dout, c.call.dlse, c.call.dq, c.call.dk, c.call.dv,
        c.call.cu_seqlens_q, c.call.cu_seqlens_kv, c.call.block_table, c.call.seqlens_kv, c.call.dropout_state, c.params[0].tensor,
        c.params[1].tensor, c.params[0].gradient, c.params[1].gradient})
    if (!in_memory(tensor)) return false;
  return quick(c.call, c.options);
}

/// Which arenas a call may write.
class Written {
 public:
  void add(const Case& c) {
    for (const foveal_tensor* tensor :
         {c.call.out, c.call.lse, c.call.dq, c.call.dk, c.call.dv, c.params[0].gradient, c.params[1].gradient})
      if (const Arena* arena = tensor == nullptr ? nullptr : arena_of(tensor->data))
        arenas_[static_cast<std::size_t>(arena - arenas().data())] = true;
  }
  void clear() {
    for (std::size_t i = 0; i < arenas_.size(); ++i)
      if (std::exchange(arenas_[i], false)) arenas()[i].clear();
  }

 private:
  std::array<bool, slot_count> arenas_{};
};

/// The call as one of a context of one rank, whose creation reads lengths and parameters, and takes time with the sizes.
void run_in_context(Case& c, Bytes& bytes, const foveal_options* compute, Written& written) {
  if (!runs(c)) return;
  for (const foveal_tensor* tensor : {c.call.q, c.call.k, c.call.v})
    if (tensor != nullptr && tensor->rank <= FOVEAL_MAX_RANK && elements(*tensor) > most_elements) return;
  static foveal_ranks* const ranks = [] {
    auto network = sized<foveal_network>();
    network.size = 1;
    foveal_ranks* made = nullptr;
    foveal_ranks_of(&network, &made);
    return made;
  }();
  auto options = sized<foveal_context_options>();
  options.deal = bytes.one_of<const char*>({nullptr, "contiguous", "zigzag", "pieces", "none"});
  options.machine = bytes.one_of<const char*>({nullptr, "network", "nvlink", "none"});
  options.unit = bytes.once_in(4) ? bytes.wild() : bytes.pick(32);
  if (bytes.once_in(8)) options.head_groups = static_cast<int32_t>(bytes.wild());
  if (bytes.once_in(8)) options.remote_steps = static_cast<int32_t>(bytes.wild());
  options.compute = compute;
  foveal_context* context = nullptr;
  if (foveal_context_create(ranks, &c.attention, &c.call, &options, &context) == FOVEAL_OK) {
    char text[64];
    foveal_context_explain(context, text, sizeof text);
    foveal_context_tokens(context, static_cast<int32_t>(bytes.pick(3)) - 1, static_cast<int32_t>(bytes.pick(2)), nullptr);
    if (bytes.once_in(2)) disturb(c, bytes);
    c.call.cu_seqlens_q = c.call.cu_seqlens_kv = nullptr;
    if (runs(c)) {
      written.add(c);
      foveal_context_run(context, &c.call, nullptr);
    }
  }
  foveal_context_destroy(context);
}

void fill_views(Bytes& bytes) {
  const int64_t sizes[] = {bytes.wild(), bytes.wild(), bytes.wild()};
  foveal_tensor made[3];
  void* const data = bytes.once_in(2) ? nullptr : arenas()[q].data();
  const auto dtype = static_cast<int32_t>(bytes.pick(12));
  foveal_contiguous(made, data, dtype, static_cast<int32_t>(bytes.pick(4)), sizes);
  foveal_packed_qkv(made, data, dtype, sizes[0], sizes[1], sizes[2], bytes.once_in(2) ? bytes.wild() : 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // AddressSanitizer keeps some kilobytes of every thread that ever was, and starts them slowly: only cases that ask for threads have some.
  [[maybe_unused]] static const int threads = foveal_set_num_threads(1);
  Bytes bytes(data, size);
  static Written written = [] {
    for (Arena& arena : arenas()) arena.clear();
    return Written();
  }();
  written.clear();
  for (const int slot : {cu_q, cu_kv, table, seqlens})
    std::memset(arenas()[static_cast<std::size_t>(slot)].data(), untouched, 64);  // what make() writes
  static Case c;
  c = {};
  make(c, bytes);
  for (unsigned i = bytes.pick(4); i > 0; --i) disturb(c, bytes);

  static foveal::fuzz::Workspace workspace;
  foveal_plan* plan = nullptr;
  const foveal_options* options = bytes.once_in(8) ? nullptr : &c.options;
  if (foveal_plan_create(&c.attention, &c.call, options, &plan) == FOVEAL_OK) {
    char text[512];
    if (bytes.once_in(4)) foveal_plan_explain(plan, text, sizeof text);
    if (bytes.once_in(2)) disturb(c, bytes);
    const std::size_t wanted = foveal_plan_workspace_bytes(plan);
    if (runs(c) && wanted <= workspace.size()) {
      written.add(c);
      foveal_plan_run(plan, &c.call, bytes.once_in(16) ? nullptr : workspace.of(wanted), nullptr);
    }
  }
  foveal_plan_destroy(plan);
  if (runs(c) && bytes.once_in(8)) {
    written.add(c);
    foveal_run(&c.attention, &c.call, options, nullptr);
  }
  if (bytes.once_in(16)) run_in_context(c, bytes, options, written);
  if (bytes.once_in(64)) fill_views(bytes);
  for (const Arena& arena : arenas()) arena.check();
  return 0;
}
